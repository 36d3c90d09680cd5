"""The sampled token: noise from a seed, and the arithmetic that every device must agree on."""
