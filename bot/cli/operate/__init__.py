"""`bot status` and its kin, `pause`, `resume`, `reload`, `stop`, `kill`, `explain`, `systemd`, `launchd`."""
