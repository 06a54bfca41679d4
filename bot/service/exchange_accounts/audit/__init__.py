"""Compares the books of an account with what its exchange says: for the service every hour, and for `bot audit`.

`books` reads the own side, `exchange_books` the exchange's, `comparison` names what differs; all three are pure.
`audit_schedule` is the task of the service.
"""
