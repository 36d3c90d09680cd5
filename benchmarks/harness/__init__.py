"""What benchmarks share: headers and closing lines, a network laboratory, pictures, one measured node."""
