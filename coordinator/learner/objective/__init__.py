"""The loss of a batch: advantages, surrogates, weights and their metrics."""
