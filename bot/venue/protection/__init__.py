"""Stops, targets and guardians of a position: how they are set, moved and ended."""
