"""State and commands as JSON, and old records packed in pages."""
