"""Heads of the ledger as published: which head follows which, whatever copy of it is at hand."""

import json

import pytest

from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.ledger_heads import LedgerHead, names, payload_hash
from tests.support import paths

HEADS = {
    name: bytes.fromhex(data) for name, data in json.loads((paths.VECTORS / "ledger_heads.json").read_text()).items()
}


def head(name: str) -> LedgerHead:
    return decode(decode_unverified(HEADS[name]).payload, LedgerHead)


@pytest.mark.parametrize("name", HEADS)
def test_a_published_head_decodes_and_encodes_to_the_same_payload(name: str) -> None:
    assert encode(head(name)) == decode_unverified(HEADS[name]).payload


@pytest.mark.parametrize("copy", ["first", "first, other signature", "first, other bytes"])
def test_the_second_head_follows_each_copy_of_the_first(copy: str) -> None:
    assert payload_hash(HEADS[copy]) == payload_hash(HEADS["first"])
    assert names(head("second"), HEADS[copy])


def test_only_the_first_head_names_none_before_it() -> None:
    assert names(head("first"), None)
    assert not names(head("second"), None)
    assert not names(head("second"), HEADS["second"])
    assert not names(head("first"), HEADS["first"])
