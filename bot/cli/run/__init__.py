"""`bot run`: the daemon in the foreground, with its embedded service."""
