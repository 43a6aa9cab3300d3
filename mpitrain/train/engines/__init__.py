"""Step engines: implementations of one protocol, each of which computes an optimiser step in its own way."""
