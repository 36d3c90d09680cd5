"""Balances of replaced keys, computed again: docs/protocol/ledger.md, section Balances of replaced keys."""

from collections import Counter
from typing import Any

import epoch_rules
from epoch_rules import DAY, FIELDS, NEVER, Map, check

FIELDS["balance.disputed"] = "rules node successor"
FIELDS["balance.moved"] = "rules node successor accrued unvested payable"


class Market(epoch_rules.Market):
    """The market with its replaced keys: of each its successor, the end of its wait, and whether it is disputed, and
    has moved."""

    def __init__(self, run: bytes) -> None:
        super().__init__(run)
        self.payable, self.replaced = Counter[str](), dict[str, list[Any]]()

    def holder(self, node: str) -> str:
        while self.replaced.get(node, [0, 0, 0, False])[3]:
            node = self.replaced[node][0]
        return node

    def take(self, at: int, kind: str, key: str, postings: list[list[Any]], facts: bytes, told: Map) -> bool:
        if kind in ("begun.paid", "lease.reversed"):
            told = {**told, "node": self.holder(told["node"])}
        checked = super().take(at, kind, key, postings, facts, told)
        if kind == "key.rotated":
            self.replaced[told["node"]] = [told["successor"], at + 3 * DAY, False, False]
            self.replaced.pop(told["successor"], None)
        for account, amount in postings:
            if account.endswith(":payable"):
                self.payable[account.split(":")[1]] += amount
        return checked

    def _forfeited(self, at: int, told: Map) -> tuple[str, Any, Map]:
        owner, share, day = self.shares.get(told["lease"], ("", 0, None))
        check({told["lease"], day} & self.taken_back, "its group was not taken back")
        check((told["node"], told["amount"]) == (self.holder(owner), share), f"its group earned {share} for {owner}")
        check(share, "its group earned nothing")
        return super()._forfeited(at, told)

    def _balance_disputed(self, at: int, told: Map) -> tuple[str, Any, Map]:
        wait = self.replaced[told["node"]]
        check(not wait[2] and at < wait[1], "it cannot be disputed any more")
        wait[2] = True
        return f"disputed:{told['node']}:{at}", [], {"successor": wait[0]}

    def _balance_moved(self, at: int, told: Map) -> tuple[str, Any, Map]:
        node, wait = told["node"], self.replaced[told["node"]]
        check(not wait[2] and at >= wait[1], "its balance does not move, or not yet")
        old, new, wait[3] = self.vesting.pop(node, []), wait[0], True
        sums = {"accrued": sum(one[4] for one in old), "unvested": sum(one[2] for one in old)}
        sums["payable"] = self.payable[node]
        check(sum(sums.values()), "it has no balance")
        if old:
            self.vesting[new] = sorted([*old, *self.vesting.get(new, [])], key=lambda one: one[0])
        if self.nodes.get(node, NEVER)["proven"]:
            self.nodes[new] = {**self.nodes.get(new, NEVER), "proven": True}
        moves = [(f"node:{node}:{name}", -amount) for name, amount in sums.items()]
        moves += [(f"node:{new}:{name}", amount) for name, amount in sums.items()]
        return f"moved:{node}:{at}", moves, {"successor": new, **sums}

    def proven(self, node: str, at: int) -> bool:
        _, due, disputed, _ = self.replaced.get(node, ["", 0, False, False])
        return super().proven(node, at) or (disputed and at >= due)

    def state(self) -> Map:
        return {**super().state(), "replaced": dict(sorted(self.replaced.items()))}
