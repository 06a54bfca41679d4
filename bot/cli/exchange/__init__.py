"""`bot exchange`: an account at an exchange, read only, and a local exchange for tests of trading bots."""
