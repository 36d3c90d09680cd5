"""Limits: what one peer, one address and one neighbourhood of the Internet may take of this peer, and where a request
came from."""
