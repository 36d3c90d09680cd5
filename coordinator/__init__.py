"""The operator's daemon: leases, admission, ledger, learner, publisher, leaderboard."""
