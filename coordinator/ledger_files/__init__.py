"""The ledger outside run.sqlite: exports, backups, and a new log after a restore."""
