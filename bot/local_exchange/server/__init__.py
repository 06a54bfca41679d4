"""HTTP, WebSockets, clock, control and durable state around the engine. Start with `service`."""
