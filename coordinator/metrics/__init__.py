"""Measure the run: history, capacity, broadcasts, and the views that people see."""
