"""The facts of an entry that pays a canary (coordinator/accounts/vesting.py). Pure."""

import msgspec


class CanaryVested(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `canary.vested`: the pay of a canary is the node's own. `weight`: milli-RE."""

    rules: int = 1
    node: str
    lease: bytes
    weight: int
