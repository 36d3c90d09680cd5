"""One peer on any transport: requests, gossip and payloads in the transport's own event loop."""
