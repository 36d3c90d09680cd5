"""Measure the time until all peers hold a new version: over real links, and in simulated time."""
