"""The order book of a market, the orders that a price reaches, and the range of prices in which nothing happens."""
