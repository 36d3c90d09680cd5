"""The statement of an old key: both keys sign it, for one run, and the new one brings it."""

from collections.abc import Callable

import pytest

from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.errors import PeerFault
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol import succession
from echo2.protocol.succession import KIND, Succession

RUN, NOW = b"r" * 32, 1000
OLD, NEW, STRANGER = (generate_key() for _ in range(3))
STATEMENT = Succession(old=public_bytes(OLD), new=public_bytes(NEW), at=NOW)


def test_a_statement_is_opened_by_the_run_that_it_is_for() -> None:
    assert succession.open_succession(succession.make(RUN, OLD, NEW, NOW), RUN, public_bytes(NEW)) == STATEMENT


FALSE: dict[str, Callable[[], bytes]] = {
    "signed by the old key alone": lambda: seal(KIND, RUN, encode(STATEMENT), OLD),
    "signed by the new key alone": lambda: seal(KIND, RUN, encode(STATEMENT), NEW),
    "signed twice by the new key": lambda: seal(KIND, RUN, encode(STATEMENT), NEW, NEW),
    "signed by a stranger instead of the old key": lambda: seal(KIND, RUN, encode(STATEMENT), STRANGER, NEW),
    "signed by a third key, too": lambda: seal(KIND, RUN, encode(STATEMENT), OLD, NEW, STRANGER),
    "of another run": lambda: succession.make(b"o" * 32, OLD, NEW, NOW),
    "of another kind": lambda: seal("peer", RUN, encode(STATEMENT), OLD, NEW),
    "the other way round": lambda: succession.make(RUN, NEW, OLD, NOW),
    "brought by a stranger": lambda: succession.make(RUN, OLD, STRANGER, NOW),
    "from one key to itself": lambda: succession.make(RUN, NEW, NEW, NOW),
    "with a signature cut short": lambda: succession.make(RUN, OLD, NEW, NOW)[:-1],
    "with another payload": lambda: seal(KIND, RUN, b"\x80", OLD, NEW),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("what", FALSE)
def test_a_false_statement_is_refused(what: str) -> None:
    with pytest.raises(PeerFault):
        succession.open_succession(FALSE[what](), RUN, public_bytes(NEW))
    assert decode_unverified(succession.make(RUN, OLD, NEW, NOW)).kind == KIND
