"""The node's connections: coordinator, neighbours, reachability, the plan of broadcasts."""
