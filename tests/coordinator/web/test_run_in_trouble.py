"""A run in trouble on the page, in `status` and in the metrics: pauses, batches set aside, a waiting learner."""

from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.trouble_views import PauseView, SetAsideView, TroubleView
from echo2.coordinator.metrics.views import RunState, TaskRow
from echo2.coordinator.web import page, prometheus
from tests.support import pictures

REASON = 'ValueError: a reward is not a number <b> "x"\nand a second line'


def troubled(**changes: object) -> RunState:
    trouble = msgspec.structs.replace(TroubleView(), **changes)
    return msgspec.structs.replace(pictures.BUSY, phase="paused" if trouble.paused else "learning", trouble=trouble)


def paused(until: int | None) -> RunState:
    pause = PauseView(kind="batches", why="the learner failed at 3 batches in a row", since=0, until=until)
    return troubled(paused=pause)


ASIDE = troubled(
    set_aside=[SetAsideView(at=pictures.STARTED, groups=16, reason=REASON)], reasons={REASON: 16, "the death": 32}
)


@pytest.mark.parametrize(
    ("until", "on_the_page", "in_status"),
    [
        (None, "The operator must resume it.", "continue with `echo2-coord resume`"),
        (pictures.BUSY.now + 600_000, "Next try in 10 min.", "next try in 10 min"),
        (pictures.BUSY.now - 1, "Next try in 0.0 s.", "next try in 0 min"),
    ],
)
def test_a_pause_is_shown_with_its_reason_and_end(until: int | None, on_the_page: str, in_status: str) -> None:
    html = page.page(paused(until))
    assert "the learner failed at 3 batches in a row" in html
    assert on_the_page in html
    assert ">Paused</span>" in html
    (text_line,) = [text_line for text_line in status.lines(paused(until)) if text_line.startswith("paused")]
    assert in_status in text_line


def test_the_command_of_a_pause_names_the_run_folder() -> None:
    (text_line,) = [row for row in status.lines(paused(None), Path("/runs/first run")) if row.startswith("paused")]
    assert text_line.endswith("continue with `echo2-coord resume --home '/runs/first run'`")


def test_prompts_that_were_left_out_are_counted() -> None:
    state = msgspec.structs.replace(pictures.BUSY, skipped={"no-prompt": 12, "expired,incomplete": 1})
    html = page.page(state)
    assert "Prompts that were left out: 12; the task did not give them" in html
    assert "the log says which. Prompts that were skipped, after leases that ended as expired, incomplete: 1." in html
    assert any(row.startswith("prompts  12 left out") for row in status.lines(state))


def test_the_sentences_about_the_work_are_apart() -> None:
    state = msgspec.structs.replace(pictures.BUSY, unscored=10, skipped={"no-prompt": 1})
    said = page.page(state)
    assert "learn from: 2. Groups that were paid for, but to which the task gave no finite reward: 10. " in said
    assert "Prompts that were left out: 1; " in said


def test_a_reason_is_on_the_page_in_status_and_in_the_metrics() -> None:
    html = page.page(ASIDE)
    assert "ValueError: a reward is not a number &lt;b&gt;" in html
    assert "48 groups were set aside in all" in html
    assert any("16 for ValueError: a reward is not a number" in text_line for text_line in status.lines(ASIDE))
    families = {family.name: family for family in text_string_to_metric_families(prometheus.exposition(ASIDE).decode())}
    samples = {one.labels["reason"]: one.value for one in families["echo2_groups_set_aside"].samples}
    assert samples == {REASON: 16, "the death": 32}


def test_failed_episodes_of_the_environment_are_shown_with_their_reasons() -> None:
    state = troubled(episodes={"score raised ValueError: <b>": 3, "no answer within 10 s": 1})
    rows = [TaskRow(name="riddle", kind="single", share=1.0, failed=state.trouble.episodes)]
    html = page.page(msgspec.structs.replace(state, tasks=rows))
    assert html.count("score raised ValueError: &lt;b&gt;") == html.count("no answer within 10 s") == 1
    (row,) = [row for row in status.lines(state) if row.startswith("episodes")]
    assert "1 for no answer within 10 s; 3 for score raised ValueError: <b>" in row
    assert b'echo2_episodes_failed_total{reason="no answer within 10 s"} 1.0' in prometheus.exposition(state)


def test_a_waiting_learner_shows_its_reason() -> None:
    state = troubled(waiting="0 of 8 groups of the next batch are ready; no node has asked for a lease")
    assert "no node has asked for a lease" in page.page(state)
    assert any(text_line.startswith("waiting") for text_line in status.lines(state))
    assert b"echo2_waiting 1.0" in prometheus.exposition(state)


def test_a_run_without_trouble_shows_no_notice() -> None:
    html = page.page(pictures.BUSY)
    assert "Set aside" not in html
    assert 'class="notice"' not in html
    assert not any(text_line.startswith(("paused", "aside", "waiting")) for text_line in status.lines(pictures.BUSY))


def test_skipped_prompts_are_counted_with_their_reasons_on_the_page_and_in_the_metrics() -> None:
    state = msgspec.structs.replace(pictures.BUSY, skipped={"expired,late": 7})
    assert "Prompts that were skipped, after leases that ended as expired, late: 7." in page.page(state)
    assert "prompts were skipped" not in page.page(pictures.BUSY)
    assert b'echo2_prompts_skipped_total{reasons="expired,late"} 7.0' in prometheus.exposition(state)
