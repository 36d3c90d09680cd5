"""The row of a node in the close of an epoch, as the ledger states it: market, node and auditor read it alike."""

import msgspec


class ClosedNode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's share in an epoch. `price`: price per RE, rounded down. `work`: accepted. `leased`: milliseconds by
    which its union of leases has grown. `pay`: pay with `unvested`. `active`: false in its run-off."""

    node: str
    price: int
    work: int
    leased: int
    pay: int
    unvested: int
    active: bool
