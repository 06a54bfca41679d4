"""`bot sandbox` and `bot mcp`: the service alone, for any client."""
