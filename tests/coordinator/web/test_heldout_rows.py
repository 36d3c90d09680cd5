"""The held-out results of volunteers on the page, in `status`, as metrics and as CSV."""

import msgspec

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import HeldoutRate, HeldoutResult
from echo2.coordinator.web import heldout_rows, page, prometheus
from tests.support import pictures


def result(version: int, pass_1: float) -> HeldoutResult:
    rates = [
        HeldoutRate(
            task=task, prompts=prompts, answers=8 * prompts, by_operator=3, pass_1=pass_1, low=pass_1 - 0.0625,
            high=pass_1 + 0.0625, pass_k=[(2, pass_1 + 0.125), (4, pass_1 + 0.25)],
        )
        for task, prompts in (("", 48), ("add", 32), ("talk:<b>", 16))
    ]  # fmt: skip
    return HeldoutResult(era=1, version=version, at=1_000, seconds=4.5, rate=rates[0], tasks=rates[1:])


RESULTS = [result(0, 0.125), result(5, 0.5)] + [result(5 * number, 0.25) for number in range(2, 12)]
STATE = msgspec.structs.replace(pictures.BUSY, heldout=RESULTS, best_version=5, heldout_groups=400)


def test_the_page_shows_the_newest_results_the_best_one_and_each_task() -> None:
    html = page.live(STATE).replace("\N{NO-BREAK SPACE}", " ")
    part = html.partition('id="heldout"')[2].partition("</section>")[0]
    for shown in ("pass@1", "pass@4", "25 %", "19 % to 31 %", "talk:&lt;b&gt;", "<b>best</b>", ">55<", "384"):
        assert shown in part, shown
    assert part.count("<tr>") == 1 + heldout_rows.SHOWN + 1 + 2
    assert 'id="heldout"' not in page.live(msgspec.structs.replace(STATE, heldout=[]))


def test_status_says_the_newest_result_and_the_best_version() -> None:
    (row,) = [row for row in status.lines(STATE) if row.startswith("pass@k")]
    assert row.endswith("pass@1 0.250 (0.188 to 0.312), pass@4 0.500 at version 55; best at version 5")


def test_accepted_groups_that_were_held_out_are_told_apart() -> None:
    (row,) = [row for row in status.lines(STATE) if row.startswith("groups")]
    assert f"{STATE.accepted} accepted (400 of them held out), " in row
    assert "Accepted groups that were held out, for evaluation: 400." in page.live(STATE)


def test_the_metrics_name_task_and_k() -> None:
    text = prometheus.exposition(STATE).decode()
    for row in (
        'echo2_heldout_pass{k="1",task=""} 0.25',
        'echo2_heldout_pass{k="4",task="add"} 0.5',
        'echo2_heldout_pass_bound{bound="high",task="talk:<b>"} 0.3125',
        "echo2_heldout_best_version 5.0",
        "echo2_groups_heldout_total 400.0",
    ):
        assert row in text, row
    assert "echo2_heldout_pass" not in prometheus.exposition(pictures.BUSY).decode()


def test_the_csv_has_a_row_per_result_and_task() -> None:
    header, together, add, *rest = heldout_rows.as_csv(STATE.heldout).splitlines()
    assert header == "era,version,at,seconds,task,prompts,answers,by_operator,pass_1,low,high,pass_k"
    assert together == "1,0,1000,4.5,,48,384,3,0.125,0.0625,0.1875,2=0.250000 4=0.375000"
    assert add.startswith("1,0,1000,4.5,add,32,256,3,")
    assert len(rest) == 3 * len(RESULTS) - 2
