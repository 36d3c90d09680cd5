"""Rows about third parties: how often one node is aimed at somebody else."""

import pytest

from benchmarks.attacks.pay_rows import COMPUTED
from benchmarks.attacks.third_parties import THIRD_PARTIES
from echo2.p2p.discovery import dialer, operator_addresses


@pytest.mark.parametrize("sentence", THIRD_PARTIES)
def test_each_row_is_held(sentence: str) -> None:
    row = COMPUTED[sentence].row(sentence, True)
    assert (row.outcome, row.family) == ("held", "third parties"), row.note
    assert row.tried > 0


@pytest.mark.parametrize("sentence", THIRD_PARTIES)
def test_without_the_limits_it_is_broken(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Boundless(operator_addresses.DialBackoff):
        def admit(self, *words: object) -> None:  # type: ignore[override]
            return None

    monkeypatch.setattr(operator_addresses, "DialBackoff", Boundless)
    monkeypatch.setattr(dialer, "DialBackoff", Boundless)
    assert COMPUTED[sentence].row(sentence, True).outcome == "broken"
