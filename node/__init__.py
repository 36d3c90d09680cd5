"""The volunteer's daemon: follows versions, generates leased groups, keeps receipts."""
