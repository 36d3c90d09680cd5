"""Work for leases: check, generate, keep answers until they are final."""
