"""Accounts: the ledger, pay, the known nodes, and the standing, strikes and suspensions of keys."""
