"""Each task's figures on the page, in `status`, as metrics and as CSV."""

import msgspec

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import TaskRow
from echo2.coordinator.web import page, prometheus, task_rows
from tests.support import pictures

ADD = TaskRow(
    name="add", kind="pure", share=0.75, accepted=300, groups=120, reward=0.4321, success=0.25, signal=0.875,
    cut=0.0625, missing=0.021, bias="longer ones fail", sampled=0.5, greedy=0.625,
)  # fmt: skip
TALK = TaskRow(name="talk:<b>", kind="served", share=0.25, accepted=7, unscored=7, failed={"it broke": 56, "other": 1})
STATE = msgspec.structs.replace(pictures.BUSY, tasks=[ADD, TALK])


def test_the_page_shows_how_difficult_each_task_is_and_why_episodes_failed() -> None:
    html = page.live(STATE)
    part = html.partition('id="tasks"')[2].partition("</section>")[0]
    for shown in (
        "add",
        "75 %",
        "0.43",
        "25 %",
        "88 %",
        "50 %",
        "2 %",
        "longer ones fail",
        "talk:&lt;b&gt;",
        "it broke",
        "57",
    ):
        assert shown in part.replace("\N{NO-BREAK SPACE}", " "), shown
    assert 'id="tasks"' not in page.live(msgspec.structs.replace(STATE, tasks=[]))


def test_the_page_shows_no_path_of_the_operator() -> None:
    row = msgspec.structs.replace(STATE.tasks[0], name="math:/home/op/private/sums.jsonl?problem=q")
    part = page.live(msgspec.structs.replace(STATE, tasks=[row])).partition('id="tasks"')[2].partition("</section>")[0]
    assert "<bdi>math: sums.jsonl</bdi>" in part
    assert "private" not in part


def test_status_has_a_line_for_each_task() -> None:
    add, talk = [row for row in status.lines(STATE) if row.startswith("task ")]
    assert add == (
        "task     add: 75 % of the prompts, 300 groups accepted; of the last 120 reward 0.432, success 0.250, "
        "88 % with unequal rewards; 6.2 % of their answers cut; 2.1 % of their rollouts without a reward; "
        "longer ones fail; held out sampled 0.500, greedy 0.625"
    )
    assert talk.endswith("7 groups accepted; 57 failed episodes, most often for it broke")


def test_the_metrics_name_the_task() -> None:
    text = prometheus.exposition(STATE).decode()
    for row in (
        'echo2_task_groups_accepted_total{task="add"} 300.0',
        'echo2_task_signal_ratio{task="add"} 0.875',
        'echo2_task_missing_ratio{task="add"} 0.021',
        'echo2_task_heldout_accuracy{sampling="greedy",task="add"} 0.625',
        'echo2_task_episodes_failed_total{reason="it broke",task="talk:<b>"} 56.0',
    ):
        assert row in text
    assert 'echo2_task_reward{task="talk' not in text


def test_the_csv_has_a_row_per_task_and_nothing_for_unknown_figures() -> None:
    header, add, talk = task_rows.as_csv(STATE.tasks).splitlines()
    assert (
        header
        == "name,kind,share,accepted,unscored,groups,reward,success,signal,cut,missing,sampled,greedy,failed_episodes"
    )
    assert add == "add,pure,0.75,300,0,120,0.4321,0.25,0.875,0.0625,0.021,0.5,0.625,0"
    assert talk == "talk:<b>,served,0.25,7,7,0,,,,,,,,57"
    formula = msgspec.structs.replace(STATE.tasks[1], name="=cmd|' /C calc'!A1")
    assert task_rows.as_csv([formula]).splitlines()[1].startswith("'=cmd|")
