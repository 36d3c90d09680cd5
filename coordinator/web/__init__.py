"""The leaderboard: a page, an API and metrics of one run, for anyone who can reach the address."""
