"""Descriptions of the interface for programs and people: OpenAPI, /llms.txt, /agent.json, /docs, and the wallet page.

Start with `routes.py`. Everything is generated from the service's routes and models."""
