"""Accounts and prices of exchanges, and the link process that sends the actions of the service.

`protocol` has the values that every exchange is translated to, and `link` the process that talks with an exchange. A
folder for each exchange holds its wire form and everything else that only that exchange knows. Start with
`protocol.py`, then `link/client.py`, then the `form.py` of an exchange. These packages never import the local exchange:
a misreading of the wire form in shared code would pass every test.
"""
