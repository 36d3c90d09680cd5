"""Signed bytes between peers: identity, envelope, messages, Merkle, chunks, transport, swarm. Knows no weights."""
