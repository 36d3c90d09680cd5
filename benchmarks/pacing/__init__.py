"""Compare the window of leases with the room of the versions alone, in simulated time."""
