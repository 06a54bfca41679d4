"""`bot demo`, `init`, `new-strategy`, `strategies`, `check`, `config`, `doctor`."""
