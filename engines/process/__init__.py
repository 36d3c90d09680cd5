"""The engine's process, the versions that it loads, and the fleet of them on one machine."""
