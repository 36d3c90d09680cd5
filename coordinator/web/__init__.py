"""The leaderboard: a read-only web page, JSON API and Prometheus metrics of one run."""
