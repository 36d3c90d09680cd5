"""Broadcast trees: build the plan of who feeds whom, and repair it as peers come and go."""
