"""Runs in simulated time, on the product's own rules of leases and activation."""
