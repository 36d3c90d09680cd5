"""The network plane: identities, envelopes, payload exchange, limits, discovery and transports.

It knows nothing of weights.
"""
