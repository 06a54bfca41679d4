"""Money and margin: what an account owns, what an order may cost, and the limits that both keep."""
