"""Examples of a run of points at the edges of its rules: standing, Costs, reversals, accounts."""

import hashlib
from collections.abc import Callable

from echo2.coordinator.market.entries import NewEntry
from echo2.ledger.costs_in_force import CostsSet, seal_costs
from echo2.ledger.ledger_entries import ESCROW, accrued_account, transfer
from echo2.ledger.ledger_facts import LeaseCounts, LeaseReversed, LeasesEnded
from echo2.protocol.group_weights import Costs, GroupLengths, group_weight
from tests.support.example_ledger import NODES, ExampleLedger

A, B, *_ = NODES


def three_hundred_groups_after_a_wrong_one(one: ExampleLedger) -> None:
    """A key is proven again once 300 groups have followed the one that the scorer's pass refused."""
    for _ in range(30):
        one.look()
        one.lease(A, 1, audited="exact")
    one.look()
    one.lease(A, 0, kind="refused", code="drift")
    for refused in (298, 1, 1, 1):
        one.look()
        fact = LeasesEnded(ends=refused, root=bytes(32), counts=[LeaseCounts(A, 0, refused, 0)])
        one.append("leases.ended", f"ends:{one.ledger.tip().entries + 1}", fact)


def more_keys_than_an_entry_names(one: ExampleLedger) -> None:
    """The refused groups of the row without a name change nobody's standing."""
    one.lease(A, 1)
    one.look()
    fact = LeasesEnded(ends=9, root=bytes(32), counts=[LeaseCounts("", 3, 4, 1), LeaseCounts(A, 1, 1, 1)])
    one.append("leases.ended", f"ends:{one.ledger.tip().entries + 1}", fact)


def costs_of_no_later_time(one: ExampleLedger) -> None:
    for at in (0, 1, 2):
        costs = Costs(run=one.run, builds=["a build"], at=at, given=2, attention=1, decode=1, denominator=1, unit=9)
        sealed = seal_costs(costs, one.key)
        digest = hashlib.sha256(sealed).digest()
        one.beside(NewEntry(one.now, "costs.set", f"costs:{digest.hex()}", CostsSet(costs=digest, sealed=sealed)))


def more_than_is_in_escrow(one: ExampleLedger) -> None:
    one.lease(A, 1_000)
    there = one.ledger.balance(ESCROW)
    for weight in (there, there + 1, there + 2):
        new = one.outcome(A, "ok", weight=weight, turns=[[weight]], costs=one.costs[0])
        one.beside(
            NewEntry(
                one.now, "lease.accepted", f"lease:{new.lease.hex()}", new, transfer(ESCROW, accrued_account(A), weight)
            )
        )


def a_group_of_an_unknown_prompt(one: ExampleLedger) -> None:
    """A group whose entry states no prompt, where attention costs the most."""
    one.set_costs(given=3, attention=50, decode=2, denominator=1, unit=1_000)
    turns = [[40], [30]]
    one.lease(A, group_weight(one.costs[1], GroupLengths(0, turns)), turns=turns)


def samples_that_begin_without_a_token(one: ExampleLedger) -> None:
    """One that samples a token later counts, one that samples none does not."""
    turns = [[0, 5, 7], [0, 5, 0, 4], [3]]
    one.lease(A, 15, turns=turns)
    one.lease(A, 0, turns=turns[1:2])


def reversals_of_leases_that_no_entry_has(one: ExampleLedger) -> None:
    """A lease that ended without an entry may be paid, to a peer id alone; none is taken back."""
    one.lease(A, 1_000)
    for node, paid, weight in ((A, True, 7), (A, True, 8), ("l", True, 7), ("", True, 7), (A, False, 0), (A, False, 1)):
        fact = LeaseReversed(node=node, lease=bytes(16), code="drift", paid=paid, weight=weight, audited=False, why="",
                             by="operator", turns=[[7]], costs=one.costs[0])  # fmt: skip
        moves = transfer(ESCROW, accrued_account(node), weight) if paid else ()
        one.beside(NewEntry(one.now, "lease.reversed", f"reversed:{bytes(16).hex()}", fact, moves))


POINTS: dict[str, Callable[[ExampleLedger], None]] = {
    "three hundred groups after a wrong one": three_hundred_groups_after_a_wrong_one,
    "more keys than an entry names": more_keys_than_an_entry_names,
    "Costs of no later time": costs_of_no_later_time,
    "more than is in escrow": more_than_is_in_escrow,
    "a group of an unknown prompt": a_group_of_an_unknown_prompt,
    "samples that begin without a token": samples_that_begin_without_a_token,
    "reversals of leases that no entry has": reversals_of_leases_that_no_entry_has,
}
