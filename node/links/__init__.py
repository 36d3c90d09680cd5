"""The node's connections: coordinator, neighbours, reachability, broadcast plan, discovery on the local network."""
