"""Plain HTTPS between a node and the coordinator, and failover between it and libp2p."""
