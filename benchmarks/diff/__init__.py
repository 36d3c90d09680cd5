"""Measure the size and the speed of the diff between two policy versions."""
