"""For tests of programs that use the interface: a pytest plugin with a fresh service for each test. The top layer; nothing of the package needs it."""
