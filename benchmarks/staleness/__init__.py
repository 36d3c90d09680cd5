"""Accuracy after equal rollouts against their age, learning rate and objective."""
