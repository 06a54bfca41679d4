"""`bot sandbox` runs the trading service alone; `bot mcp` offers its tools to an agent."""
