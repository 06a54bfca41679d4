"""The tools for agents (MCP): each tool call is one request of the interface, through the same gateway.

Start with `tools.py`; `server.py` is the SDK's server and is imported at the first MCP request."""
