"""A pytest plugin for programs that use the interface: a fresh service for each test. No other package imports it."""
