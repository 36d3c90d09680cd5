"""Keys and what the ledger says of them: how far a key is trusted, and for how long one that cheated gets nothing."""
