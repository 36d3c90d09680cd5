"""Two values of payout.rail: `bank`, files of ISO 20022, and `https`, a payout provider."""
