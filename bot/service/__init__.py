"""The trading service: the pure venue made durable and reachable over HTTP and MCP.

Start with `host.py` (the composition root) and `state_machine/machine.py` (state, log, prices and clock; the only
caller of `venue.apply`).
`operations/` holds one method for each operation of the interface; `http/` routes requests to them. A package imports
only from those below it:
host, then sandbox, mcp and docs, then http, operations, webhooks, state_machine, bodies, then market_data and security
(pyproject.toml).

The daemon never imports the service. `wire`, `venue` and `service` can be used without the rest of the project.
"""
