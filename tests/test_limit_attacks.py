"""Every limit of docs/reference/limits.md under an attack.

An attacker that stops halfway takes nothing that a party with accepted work needs, and all that it took is back. A row
of the table without an attack fails here, and so does one whose attack takes nothing.
"""

from pathlib import Path

import pytest

from echo2.p2p.https.client_limits import ClientConnections
from echo2.p2p.limits.connection_places import ConnectionAdmission
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.request_slots import RequestSlots
from echo2.p2p.limits.shares import Shares
from tests.docs.limit_table import LIMITS
from tests.support.limit_attacks.attack import check
from tests.support.limit_attacks.table import ATTACKS, LEFT, row_of


def test_each_limit_has_an_attack_and_each_attack_a_limit() -> None:
    assert [row for row, attack in ATTACKS.items() if attack is None] == []
    assert set() == LEFT
    assert len({row_of(limit.name, limit.per) for limit in LIMITS}) == len(LIMITS), "an attack of its own"


@pytest.mark.parametrize("row", ATTACKS)
@pytest.mark.slow_for("streams that others opened, party", "requests over libp2p, peer; a party has 2 times that")
def test_an_attacker_takes_nothing_that_a_proven_party_needs_and_all_is_back(row: str, tmp_path: Path) -> None:
    attack = ATTACKS[row]
    assert attack is not None
    check(attack, tmp_path)


def test_what_is_back_later_than_the_least_rate_says_why() -> None:
    for row, attack in ATTACKS.items():
        assert attack is None or bool(attack.why) == (attack.seconds > RATE_SECONDS), row


BROKEN = {
    "streams that others opened, coordinator": (Shares, "leave"),
    "whole requests at work, entrance and class": (RequestSlots, "_count"),
    "handshakes under way, coordinator": (ConnectionAdmission, "on_connection_end"),
    "connections over HTTPS, coordinator": (ClientConnections, "remove"),
}
"""Row -> the part of the product that gives it back."""


@pytest.mark.parametrize("row", BROKEN)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow_but("whole requests at work, entrance and class")
def test_a_limit_that_is_not_given_back_is_noticed(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name = BROKEN[row]
    monkeypatch.setattr(kind, name, lambda *args: 0)
    attack = ATTACKS[row]
    assert attack is not None
    with pytest.raises((AssertionError, ExceptionGroup)):
        check(attack, tmp_path)
