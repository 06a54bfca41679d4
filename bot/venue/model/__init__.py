"""The values of the venue: its state, the commands it takes, and how numbers, refusals and records are written."""
