"""The parts of the node's connections: coordinator, neighbours, reachability, broadcast plan, local discovery."""
