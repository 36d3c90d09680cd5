"""Statistical verification of engine classes that are not exact: calibration, and evidence against a node."""
