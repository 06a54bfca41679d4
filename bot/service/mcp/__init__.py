"""The tools for agents (MCP): each call of a tool is one request of the interface, through the same gateway.

Start with `tools.py`; `server.py` is the SDK's server and is imported when the first agent comes."""
