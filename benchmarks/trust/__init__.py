"""Honest engines are not refused, and others are named soon: calibration on what changes the arithmetic of a CPU."""
