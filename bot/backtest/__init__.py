"""Sessions: runs of the daemon over a stretch of simulated time, their candles, figures and reports. Nothing here holds a rule of trading."""
