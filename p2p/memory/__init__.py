"""The in-memory network: a transport for tests and simulations, with loss, delay and partition."""
