"""The rails over which money leaves: each moves one amount to one account under one idempotency key."""
