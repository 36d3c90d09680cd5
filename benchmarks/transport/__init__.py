"""Measure the speed of chunks from one process to another."""
