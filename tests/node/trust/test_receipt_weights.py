"""A node computes the weights of its receipts again, from the lengths in their entries and the Costs that they name."""

from typing import Any

import msgspec
import pytest

from echo2.ledger.costs_in_force import CostsSet
from echo2.ledger.ledger_entries import sha256
from echo2.node.trust.ledger_witness import (
    NotProved,
    ReceiptProof,
    check_lengths,
    check_weight,
    named_costs,
    opened_costs,
)
from echo2.p2p.envelope import seal
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.swarm import merkle
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.group_weights import Costs, GroupLengths, group_weight
from echo2.protocol.ledger_heads import EntryProof
from tests.support.costs import COSTS
from tests.support.group_world import RUN

KEY, THIEF = generate_key(), generate_key()
ROLE = RoleKeys(keys=[public_bytes(KEY)], threshold=1)
CHAIN = [
    Root(
        run=RUN, serial=1, roles=dict.fromkeys(("root", "policy", "channel", "ledger"), ROLE), expires=1 << 50, issued=0
    )
]
LENGTHS = GroupLengths(40, [[3, 7, 2], [0, 9, 11]])


def entry(number: int, kind: str, facts: Any) -> ReceiptProof:
    """Return the proof of an entry in a tree that has it alone."""
    written = msgspec.msgpack.encode([number, 5, kind, "key", [], msgspec.msgpack.encode(facts)])
    return ReceiptProof(EntryProof(entry=number, previous=bytes(32), canonical=written, path=[]), 1)


def root_of(proved: ReceiptProof) -> Any:
    return {1: merkle.leaf_hash(proved.proof.canonical, sha256)}.get


def outcome(**changes: Any) -> ReceiptProof:
    """Return the entry of an accepted group, weighed by the Costs of entry 3."""
    facts = {"lease": bytes(16), **LENGTHS._asdict(), "costs": 3, "weight": group_weight(COSTS, LENGTHS)}
    return entry(9, "lease.accepted", facts | changes)


def costs_of(number: int) -> Costs | None:
    return COSTS if number == 3 else None


def test_a_weight_is_computed_again_by_the_costs_that_its_entry_names() -> None:
    assert named_costs(outcome()) == 3
    assert check_weight(outcome(), costs_of)
    assert check_weight(outcome(costs=0, weight=group_weight(None, LENGTHS)), costs_of)


def test_a_weight_whose_costs_or_lengths_are_not_known_is_not_told() -> None:
    assert not check_weight(outcome(costs=4), costs_of)
    assert not check_weight(entry(9, "lease.accepted", {"lease": bytes(16), "weight": 7}), costs_of)


LIES: dict[str, dict[str, Any]] = {
    "another weight": {"weight": 1},
    "the weight without Costs": {"weight": group_weight(None, LENGTHS)},
    "other Costs": {"costs": 0},
    "Costs that come later": {"costs": 9},
    "another prompt": {"prompt": 4},
    "other turns": {"turns": [[3, 7, 3], [0, 9, 11]]},
    "lengths below 0": {"turns": [[-3]]},
    "lengths that are none": {"turns": "many"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_weight_that_does_not_follow_is_named(lie: str) -> None:
    with pytest.raises(NotProved):
        check_weight(outcome(**LIES[lie]), costs_of)


def test_the_lengths_of_an_entry_are_those_of_the_nodes_own_group() -> None:
    check_lengths(outcome(), LENGTHS)
    check_lengths(entry(9, "lease.accepted", {"lease": bytes(16), "weight": 7}), LENGTHS)  # it states none
    fewer = LENGTHS._replace(turns=[[3, 7, 2], [0, 9, 10]])
    for lie in (fewer, LENGTHS._replace(prompt=39)):
        follows = outcome(**lie._asdict(), weight=group_weight(COSTS, lie))
        assert check_weight(follows, costs_of)
        with pytest.raises(NotProved, match="entry 9 states other lengths than those of this node's group"):
            check_lengths(follows, LENGTHS)


def set_by(sealed: bytes, number: int = 1) -> ReceiptProof:
    return entry(number, "costs.set", CostsSet(costs=bytes(32), sealed=sealed))


def test_costs_count_if_the_ledgers_key_signed_them_and_their_entry_is_under_a_head() -> None:
    good = set_by(seal("costs", RUN, encode(COSTS), KEY))
    assert opened_costs(good, root_of(good), CHAIN) == COSTS
    for sealed in (b"", seal("costs", RUN, encode(COSTS), THIEF), seal("costs", RUN, b"\x80", KEY)):
        bad = set_by(sealed)
        with pytest.raises(P2PError):
            opened_costs(bad, root_of(bad), CHAIN)
    with pytest.raises(NotProved, match="not proved to be under a head"):
        opened_costs(good, lambda size: bytes(32), CHAIN)
    other = entry(1, "node.noted", {"node": "x"})
    with pytest.raises(NotProved, match="has no Costs"):
        opened_costs(other, root_of(other), CHAIN)
    moved = ReceiptProof(msgspec.structs.replace(good.proof, entry=4), 1)
    with pytest.raises(NotProved, match="entry 1 stands for entry 4"):
        opened_costs(moved, root_of(moved), CHAIN)
