"""Shared by the benchmarks: headers and closing lines, a network laboratory, pictures, one measured node."""
