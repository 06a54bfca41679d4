"""`bot mcp`: tools for a person's assistant over standard input and output, of a service (service_tools.py) or of a
running daemon (daemon_tools.py).
"""
