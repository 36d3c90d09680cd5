"""Rows of several groups that are sampled together: their places, their order, their ends."""
