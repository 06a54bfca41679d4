"""Values that the parts of the daemon hand to each other: intents, positions, shares, limits. No I/O and no state."""
