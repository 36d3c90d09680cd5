"""Leases out and groups in: the order in which nodes are served, and what is true of a group on its way to a batch."""
