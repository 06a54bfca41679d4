"""`bot audit`: the books of an account compared with those of its exchange, and with their own sums."""
