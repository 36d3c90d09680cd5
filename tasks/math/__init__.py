"""Mathematics with answers of Math-Verify: the operator's data, or word problems from a seed (extra `math`)."""
