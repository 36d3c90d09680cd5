"""Where a request came from, as far as it tells one stranger from another.

Keys are free, connections and addresses less so: what many keys must share is shared by origin."""

from typing import NamedTuple


class Origin(NamedTuple):
    """`connection`: names the transport connection. `party`: the text that stands for its owner: the subnet of a direct
    or HTTPS connection; for a relayed peer the subnet that our own relay saw, else relay and key; for a private address
    the connection."""

    connection: str
    party: str


NOWHERE = Origin("", "")
"""Of what this process asks of itself."""
