"""Test the heads that a node takes, proofs of a fork, and proofs of a receipt."""

import msgspec
import pytest

from echo2.node.trust.ledger_witness import (
    LedgerFork,
    NotProved,
    ReceiptProof,
    WitnessedHead,
    check_fork,
    check_next,
    check_receipt,
    open_head,
    opened_in_order,
)
from echo2.p2p.envelope import join, seal
from echo2.p2p.errors import BadSignature, P2PError
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root, Unproven
from echo2.protocol.ledger_heads import GrownHead
from echo2.protocol.restored_logs import LogChain
from tests.support.witnessed_log import CHAIN, KEY, ROLE, RUN, Log, sha256

LOGS = LogChain(RUN)
THIEF, STRANGER = generate_key(), generate_key()


LOG, OTHER = Log(30), Log(30, other=4)
FIRST = LOG.head(1, 7)
SECOND = LOG.head(2, 19, FIRST)


def test_a_head_is_taken_if_the_ledgers_key_signed_it() -> None:
    assert open_head(FIRST.sealed, CHAIN, LOGS) == FIRST
    with pytest.raises(BadSignature):
        open_head(seal("ledgerhead", RUN, encode(FIRST.head), THIEF), CHAIN, LOGS)
    with pytest.raises(NotProved, match="another run"):
        open_head(LOG.head(1, 7, log=b"o" * 32).sealed, CHAIN, LOGS)


def test_the_first_head_is_taken_and_a_later_one_that_continues_it() -> None:
    check_next(None, FIRST, GrownHead(sealed=FIRST.sealed), LOGS)
    check_next(FIRST, SECOND, LOG.heads_after(FIRST, SECOND), LOGS)


def copy_of(one: WitnessedHead) -> WitnessedHead:
    """Return the same head with another signature beside the ledger's, as anybody can pass it on."""
    keys = [public_bytes(KEY), public_bytes(STRANGER)]
    sealed = join([seal("ledgerhead", RUN, one.payload, STRANGER), one.sealed], keys)
    return open_head(sealed, CHAIN, LOGS)


def test_a_head_is_taken_behind_a_copy_of_the_one_before_it_that_has_another_signature() -> None:
    copied = copy_of(FIRST)
    assert copied.head == FIRST.head
    assert copied.sealed != FIRST.sealed
    check_fork(FIRST, copied)
    check_next(copied, SECOND, LOG.heads_after(copied, SECOND), LOGS)
    third = LOG.head(3, 25, copy_of(SECOND))
    check_next(SECOND, third, LOG.heads_after(SECOND, third), LOGS)


def test_a_copy_of_a_head_by_a_revoked_key_counts_as_the_head_where_a_later_one_names_it() -> None:
    new = RoleKeys(keys=[public_bytes(THIEF)], threshold=1)
    roles = {name: new if name == "ledger" else ROLE for name in CHAIN[0].roles}
    later = Root(run=RUN, serial=1, roles=roles, expires=1 << 50, issued=1, revoked={public_bytes(KEY): 0})
    second = seal("ledgerhead", RUN, encode(SECOND.head), THIEF)
    for one in (FIRST, copy_of(FIRST)):
        heads = opened_in_order([one.sealed, second], [*CHAIN, later], LOGS)
        assert [head.head for head in heads] == [FIRST.head, SECOND.head]
        with pytest.raises(Unproven):
            opened_in_order([one.sealed], [*CHAIN, later], LOGS)


def test_two_payloads_of_one_number_are_a_fork_also_if_they_differ_in_a_field_that_is_not_known() -> None:
    payload = msgspec.msgpack.encode(msgspec.msgpack.decode(FIRST.payload) | {"later": 1})
    other = open_head(seal("ledgerhead", RUN, payload, KEY), CHAIN, LOGS)
    assert other.head == FIRST.head
    with pytest.raises(LedgerFork):
        check_fork(FIRST, other)


NOT_NEXT = {
    "a head that leaves a number out": LOG.head(3, 19, FIRST),
    "a head that goes back": LOG.head(0, 3, FIRST, issued=9),
    "a head that names another before it": LOG.head(2, 19, SECOND),
    "a head issued no later": LOG.head(2, 19, FIRST, issued=1),
    "a head over another history": OTHER.head(2, 19, FIRST),
    "a head of fewer entries": LOG.head(2, 5, FIRST),
}


@pytest.mark.parametrize("why", NOT_NEXT)
def test_a_head_is_refused_that_is_not_proved_to_continue_the_newest(why: str) -> None:
    one = NOT_NEXT[why]
    proof = LOG.tree.consistency(7, one.head.size) if one.head.size >= 7 else []
    with pytest.raises(NotProved):
        check_next(FIRST, one, GrownHead(sealed=one.sealed, consistency=proof), LOGS)
    with pytest.raises(NotProved):
        check_next(FIRST, one, GrownHead(sealed=one.sealed), LOGS)


FORKS = {
    "equal sizes and other roots": (SECOND, OTHER.head(5, 19, FIRST)),
    "equal numbers and other content": (SECOND, LOG.head(2, 20, FIRST)),
    "a first head of another history": (FIRST, OTHER.head(1, 7)),
}


@pytest.mark.parametrize("why", FORKS)
def test_two_heads_that_contradict_each_other_are_a_fork(why: str) -> None:
    one, other = FORKS[why]
    with pytest.raises(LedgerFork, match="signed two histories") as caught:
        check_fork(one, other)
    assert {caught.value.one, caught.value.other} == {one, other}


def test_heads_of_one_history_are_no_fork_in_whatever_order_they_come() -> None:
    for one in (FIRST, SECOND):
        for other in (FIRST, SECOND):
            check_fork(one, other)


def root_of(size: int) -> bytes | None:
    return {7: FIRST.head.root, 19: SECOND.head.root}.get(size)


def test_a_receipt_is_proved_under_a_head_that_was_taken() -> None:
    for number in range(1, 20):
        check_receipt(LOG.receipt(number), ReceiptProof(LOG.proof(number, 19), 19), root_of)


UNPROVED = {
    "a receipt of another weight": (LOG.receipt(4, weight=5), LOG.proof(4, 19), 19),
    "a receipt of another lease": (LOG.receipt(4, lease=b"another lease 16"), LOG.proof(4, 19), 19),
    "a receipt that names another hash": (LOG.receipt(4, entry_hash=bytes(32)), LOG.proof(4, 19), 19),
    "the proof of another entry": (LOG.receipt(4), LOG.proof(5, 19), 19),
    "an entry of another history": (OTHER.receipt(4, weight=5), OTHER.proof(4, 19), 19),
    "a head that was not taken": (LOG.receipt(4), LOG.proof(4, 20), 20),
    "a path of another size": (LOG.receipt(4), LOG.proof(4, 7), 19),
    "a path cut short": (LOG.receipt(4), msgspec.structs.replace(LOG.proof(4, 19), path=[]), 19),
    "an entry that does not decode": (
        LOG.receipt(4, entry_hash=sha256(LOG.hashes[3] + b"\xc1")),
        msgspec.structs.replace(LOG.proof(4, 19), canonical=b"\xc1"),
        19,
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", UNPROVED)
def test_a_receipt_is_not_proved_by_anything_else(why: str) -> None:
    receipt, proof, size = UNPROVED[why]
    with pytest.raises(P2PError):
        check_receipt(receipt, ReceiptProof(proof, size), root_of)
