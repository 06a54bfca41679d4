"""`bot exchange`: a local exchange for tests of trading bots."""
