"""Limits on the use of this peer by one peer, one address or one subnet, and the origin of each request."""
