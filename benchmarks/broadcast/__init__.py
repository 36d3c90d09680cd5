"""How soon does everybody hold a new version? On real lines, and in simulated time."""
