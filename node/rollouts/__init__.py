"""Work for leases: check a lease, generate its group, store submission and answer until they are final."""
