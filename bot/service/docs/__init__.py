"""The interface described for machines and people: OpenAPI, /llms.txt, /agent.json, /docs, the page of a wallet.

Start with `routes.py`. All of it is made from the routes and models that the service really has."""
