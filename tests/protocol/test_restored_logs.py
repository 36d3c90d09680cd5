"""Documents of restored logs as published, and in which log a head stands."""

import json
from typing import Any

import msgspec
import pytest

from echo2.ledger.ledger_facts import LogBegun
from echo2.p2p.envelope import decode_unverified, seal, verify_envelope
from echo2.p2p.errors import BadSignature
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import encode
from echo2.protocol.ledger_heads import GrownHead, LedgerHead, LedgerRequest
from echo2.protocol.restored_logs import KIND, LogChain, LogRestored, SealedLog, chain_of, heads_up_to, open_unverified
from tests.support import paths

VECTOR = json.loads((paths.VECTORS / "restored_logs.json").read_text())
SEALED = bytes.fromhex(VECTOR["sealed"])
RUN = bytes(range(32))
ONE = open_unverified(SEALED)
LOGS = chain_of(RUN, [SEALED])
KEY = generate_key()


def head(log: bytes, number: int, size: int) -> LedgerHead:
    return LedgerHead(log=log, number=number, size=size, root=bytes(32), tip=bytes(32), issued=number)


def following(**changes: Any) -> SealedLog:
    """Return a document that follows the published one, with changes."""
    shown = seal("ledgerhead", RUN, encode(head(LOGS.newest, 8, 399)), KEY)
    fields = {
        "serial": 2, "old": LOGS.newest, "number": 7, "size": 395, "root": bytes(32), "restored": 5, "head": shown,
    }  # fmt: skip
    document = LogRestored(**fields | changes)
    return SealedLog(document, seal(KIND, RUN, encode(document), KEY))


def test_the_published_document_names_a_log_by_its_payload_and_its_entry_repeats_it() -> None:
    assert encode(ONE.document) == decode_unverified(SEALED).payload
    assert verify_envelope(SEALED, KIND, RUN, [bytes.fromhex(VECTOR["root_key"])]) == decode_unverified(SEALED).payload
    assert ONE.id.hex() == VECTOR["log"]
    assert msgspec.msgpack.encode(LogBegun.of(ONE)).hex() == VECTOR["facts"]
    with pytest.raises(BadSignature):
        verify_envelope(SEALED, KIND, bytes(32), [bytes.fromhex(VECTOR["root_key"])])


@pytest.mark.parametrize(
    ("log", "number", "size", "stands"),
    [
        (RUN, 6, 390, True), (RUN, 6, 391, False), (RUN, 7, 390, False), (ONE.id, 7, 391, True),
        (ONE.id, 6, 391, False), (ONE.id, 7, 390, False), (bytes(32), 7, 391, False),
    ],
)  # fmt: skip
def test_a_head_stands_in_its_log_alone(log: bytes, number: int, size: int, stands: bool) -> None:
    assert LOGS.admits(head(log, number, size)) == stands


def test_a_further_log_cuts_off_the_one_before_it() -> None:
    logs = LOGS.with_next(following())
    assert (logs.serial, [one.document.serial for one in logs.after(RUN)]) == (2, [1, 2])
    assert logs.admits(head(ONE.id, 7, 395))
    assert not logs.admits(head(ONE.id, 8, 399))
    assert logs.begun_between(head(RUN, 6, 390), head(logs.newest, 8, 396)) == logs.logs[1].document
    assert logs.begun_between(head(logs.newest, 8, 396), head(logs.newest, 9, 397)) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"serial": 3}, "does not follow"),
        ({"old": RUN}, "does not follow"),
        ({"size": 400}, "nothing was lost"),
        ({"number": 9}, "nothing was lost"),
        ({"head": seal("ledgerhead", RUN, encode(head(bytes(32), 9, 500)), KEY)}, "another run"),
    ],
)
def test_a_document_that_does_not_follow_is_refused_with_the_reason(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSignature, match=why):
        LOGS.with_next(following(**changes))


def test_an_answer_has_heads_of_the_clients_log_alone() -> None:
    old, new = (
        GrownHead(sealed=seal("ledgerhead", RUN, encode(one), KEY))
        for one in (head(RUN, 6, 390), head(LOGS.newest, 7, 395))
    )
    assert heads_up_to(LOGS, LedgerRequest(after=5), [old, new]) == [old]
    assert heads_up_to(LOGS, LedgerRequest(after=5, log=LOGS.newest), [old, new]) == [old, new]
    assert heads_up_to(LOGS, LedgerRequest(after=5, log=bytes(32)), [old, new]) == []
    assert heads_up_to(LOGS, LedgerRequest(), [new]) == [new]
    assert LogChain(RUN).after(None) == ()
