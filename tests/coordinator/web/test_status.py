"""`echo2-coord status`: the lines, and states of other versions."""

import msgspec

from coordinator.config import LearnerSection
from coordinator.learner import objective_choices
from coordinator.metrics.views import LedgerView, TroubleView
from coordinator.web import page, status
from tests.support import pictures


def test_the_state_of_an_older_coordinator_decodes() -> None:
    old = msgspec.json.decode(msgspec.json.encode(pictures.BUSY))
    del old["trouble"], old["unscored"]
    assert status.decode(msgspec.json.encode(old)).trouble == TroubleView()


def test_status_leaves_out_unknown_values_of_a_starting_coordinator() -> None:
    starting = msgspec.structs.replace(pictures.BUSY, phase="starting", parameters=0, step=0, era=0)
    run, phase, *_ = status.lines(starting)
    assert ("parameters" in run, phase) == (False, "phase    starting")


def test_the_ledger_and_its_newest_head_are_a_line() -> None:
    def line(ledger: LedgerView) -> list[str]:
        state = msgspec.structs.replace(pictures.BUSY, ledger=ledger)
        return [one for one in status.lines(state) if one.startswith("ledger")]

    assert line(LedgerView()) == []
    assert "7 entries, none of them" in line(LedgerView(entries=7))[0]
    head = LedgerView(entries=7, number=2, size=5, issued=pictures.BUSY.now - 4_000)
    assert "7 entries; head 2, signed 4 s ago, covers 5" in line(head)[0]


def test_the_loss_that_the_learner_lowers_is_a_line_and_on_the_page() -> None:
    told = objective_choices.told(LearnerSection(objective="grpo", aggregate="constant"))
    assert told == "grpo (anchor behaviour, weight none, surrogate clip, mean by constant)"
    state = msgspec.structs.replace(pictures.BUSY, objective=told)
    assert f"loss     {told}" in status.lines(state)
    assert f"Loss: {told}." in page.page(state)
    assert not [one for one in status.lines(pictures.BUSY) if one.startswith("loss")]
    assert "Loss:" not in page.page(pictures.BUSY)
