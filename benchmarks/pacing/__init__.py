"""Simulate the law of leases, and the cost of a request for a lease."""
