"""`echo2-coord status`: the lines, and states of other versions."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.database.run_folder import RunFolder, lock_run
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import FaultView, LedgerView, LinksView
from echo2.coordinator.settings import objective_choices
from echo2.coordinator.settings.network_config import WebSection
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.coordinator.web import page, prometheus
from echo2.p2p.errors import Unreachable
from tests.support import pictures

RUN = bytes.fromhex(pictures.BUSY.run)


def test_status_leaves_out_unknown_values_of_a_starting_coordinator() -> None:
    starting = msgspec.structs.replace(pictures.BUSY, phase="starting", parameters=0, step=0, era=0)
    run, phase, *_ = status.lines(starting)
    assert ("parameters" in run, phase) == (False, f"phase    starting{status.STARTING_SENTENCE}")
    assert "parameters" not in page.page(starting).partition('class="lead"')[2].partition("</p>")[0]


def test_the_ledger_and_its_newest_head_are_a_line() -> None:
    def line(ledger: LedgerView) -> list[str]:
        state = msgspec.structs.replace(pictures.BUSY, ledger=ledger)
        return [one for one in status.lines(state) if one.startswith("ledger")]

    assert line(LedgerView()) == []
    assert "7 entries, none of them" in line(LedgerView(entries=7))[0]
    head = LedgerView(entries=7, number=2, size=5, issued=pictures.BUSY.now - 4_000)
    assert "7 entries; head 2, signed 4 s ago, covers 5" in line(head)[0]


def test_the_loss_that_the_learner_lowers_is_a_line_and_on_the_page() -> None:
    told = objective_choices.describe_loss(LearnerSection(objective="grpo", aggregate="constant"))
    assert told == "grpo (anchor behaviour, weight none, surrogate clip, mean by constant)"
    state = msgspec.structs.replace(pictures.BUSY, objective=told)
    assert f"loss     {told}" in status.lines(state)
    assert f"Loss: {told}." in page.page(state)
    assert not [one for one in status.lines(pictures.BUSY) if one.startswith("loss")]
    assert "Loss:" not in page.page(pictures.BUSY)


def test_the_window_of_leases_is_a_line_on_the_page_and_a_metric_once_a_draw_has_shown_it() -> None:
    assert any("at most 2.2 batches" in row and "of 5 that S allows" in row for row in status.lines(pictures.BUSY))
    assert "at most 2.2 batches are on their way to it" in page.page(pictures.BUSY)
    assert b"echo2_lease_window_batches 2.25" in prometheus.exposition(pictures.BUSY)
    before = msgspec.structs.replace(pictures.BUSY, window=None)
    assert not any(row.startswith("window") for row in status.lines(before))
    assert b"echo2_lease_window_batches 2" not in prometheus.exposition(before)


def test_the_stages_of_the_groups_learned_lately_are_a_line_and_the_largest_is_named() -> None:
    lines = status.lines(pictures.BUSY)
    (at,) = [number for number, line in enumerate(lines) if line.startswith("stages")]
    assert lines[at] == (
        "stages   median steps from published, of the last 2 groups learned: held 0.14, leased 0.41, begun 0.01, "
        "generated 0.37, received 0.07, judged 0.77, drawn 0.84; 2.61 in all"
    )
    assert lines[at + 1].strip() == pictures.STAGES.sentence
    assert not [line for line in status.lines(pictures.EMPTY) if line.startswith("stages")]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The invites that a coordinator's page shows one after the other; the last one stays."""
    shown: list[str] = []

    def fetch(url: str, home: Path) -> bytes:
        invite = shown.pop(0) if len(shown) > 1 else shown[0]
        return msgspec.json.encode(msgspec.structs.replace(pictures.BUSY, invite=invite))

    ticks: Iterator[float] = iter(range(1000))
    monkeypatch.setattr(status, "fetch", fetch)
    monkeypatch.setattr(status.time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)
    return shown


def test_an_invite_is_waited_for_while_the_coordinator_starts(tmp_path: Path, answers: list[str]) -> None:
    answers += ["", "", "echo2://the-run"]
    with lock_run(RunFolder(tmp_path)):
        assert status.invite_of_the_running(RunFolder(tmp_path), WebSection(), RUN) == "echo2://the-run"


def test_a_coordinator_that_never_has_an_address_is_named(tmp_path: Path, answers: list[str]) -> None:
    answers.append("")
    with lock_run(RunFolder(tmp_path)), pytest.raises(Unreachable, match="still starting"):
        status.invite_of_the_running(RunFolder(tmp_path), WebSection(), RUN)


def test_the_state_of_another_run_on_the_same_port_is_not_shown(tmp_path: Path, answers: list[str]) -> None:
    answers.append("echo2://the-run")
    with lock_run(RunFolder(tmp_path)):
        assert status.decode(status.fetch_of(RunFolder(tmp_path), WebSection(), RUN)).name == pictures.BUSY.name
    with pytest.raises(status.OtherFolder, match="serves another folder, and this is a copy"):
        status.fetch_of(RunFolder(tmp_path), WebSection(), RUN)
    with pytest.raises(Unreachable, match=f"no coordinator runs in {tmp_path}: .* another run answers"):
        status.fetch_of(RunFolder(tmp_path), WebSection(), bytes(32))
    with pytest.raises(Unreachable, match="only while the run runs"):
        status.invite_of_the_running(RunFolder(tmp_path), WebSection(), bytes(32))


def test_a_port_that_the_system_chooses_is_said_as_it_was_chosen_or_not_at_all(tmp_path: Path) -> None:
    """Before, where no coordinator ran, http://127.0.0.1:0 did not answer."""
    folder, web = RunFolder(tmp_path), WebSection(port=0)
    with pytest.raises(Unreachable, match=f"^no coordinator runs in {tmp_path}: start one with `echo2-coord run"):
        status.address_in(folder, web)
    folder.page.write_text("http://127.0.0.1:40123\n")
    assert status.address_in(folder, web) == "http://127.0.0.1:40123"
    folder.page.unlink()
    assert status.address_in(folder, WebSection(port=8420)) == "http://127.0.0.1:8420"


@pytest.mark.parametrize("url", ["127.0.0.1:8420", "ftp://127.0.0.1", ""])
def test_an_address_without_its_scheme_is_named_as_the_fault(url: str) -> None:
    with pytest.raises(Unreachable, match="is no coordinator's page: write its address as"):
        status.fetch(url)


def test_the_doctor_reads_of_hidden_strangers_from_the_running_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    assert status.hidden_strangers(folder, WebSection(port=1), RUN)[0].startswith("not known, no coordinator runs")
    state = msgspec.structs.replace(pictures.BUSY, links=LinksView(hidden="all 9 came from one; name the proxy"))
    monkeypatch.setattr(status, "fetch_of", lambda *place: msgspec.json.encode(state))
    assert status.hidden_strangers(folder, WebSection(), RUN) == ("all 9 came from one", "name the proxy")
    monkeypatch.setattr(status, "fetch_of", lambda *place: msgspec.json.encode(pictures.BUSY))
    assert status.hidden_strangers(folder, WebSection(), RUN) == ("not hidden, as far as the coordinator sees", "")


def test_words_of_another_page_command_no_terminal() -> None:
    said = "evil\x1b]0;title\x07\u202e\r"
    state = msgspec.structs.replace(pictures.BUSY, name=said, model=said, faults=[FaultView(at=0, what=said)])
    lines = status.lines(state)
    assert all(row.isprintable() for row in lines)
    assert sum("evil?]0;title" in row for row in lines) == 2
