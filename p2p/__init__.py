"""The network plane: identities, envelopes, payload exchange, limits, discovery and transports. Knows no weights."""
