"""An in-memory network: the transport for tests and simulations."""
