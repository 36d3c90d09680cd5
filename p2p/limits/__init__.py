"""Limits on what one peer, one address or one subnet may use of this peer, and the origin of each request."""
