"""The link: a process of its own that talks with an exchange for the service that has started it.

`client` is the service's end, `process` the child's main, `frames` and `values` what passes between them. The link has
no durable state. It ends with the service, and a link that ends is a missing answer: the service starts another one.
Start with `client.py`.
"""
