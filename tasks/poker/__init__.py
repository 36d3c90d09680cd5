"""Poker for two against a frozen opponent: Kuhn, Leduc and no-limit hold'em, by pokerkit (extra `poker`)."""
