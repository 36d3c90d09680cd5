"""The metrics of a step, in all and by age: on the page and as CSV."""

import csv
import io

import msgspec

from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import page, step_rows
from tests.support import pictures

LAST = pictures.BUSY.steps[-1]
METRICS = {"reward": 0.5, "ess": 0.9, "masked": 0.25, "ess_age_0": 1.0, "masked_age_0": 0.0, "ess_age_12": 0.75}


def state() -> RunState:
    return msgspec.structs.replace(pictures.BUSY, steps=[msgspec.structs.replace(LAST, metrics=METRICS)])


def test_a_row_for_all_groups_comes_before_one_per_age() -> None:
    rows = step_rows.last_step_rows(state())
    assert [row.age for row in rows] == [None, 0, 12]
    assert [row.values[step_rows.COLUMNS.index("ess")] for row in rows] == [0.9, 1.0, 0.75]
    assert rows[1].values[step_rows.COLUMNS.index("reward")] is None, "a step of an older program"


def test_the_csv_has_a_row_per_step_and_age() -> None:
    rows = list(csv.DictReader(io.StringIO(step_rows.as_csv(state().steps))))
    assert [(row["step"], row["age"], row["masked"]) for row in rows] == [
        (str(LAST.step), "", "0.25"),
        (str(LAST.step), "0", "0.0"),
        (str(LAST.step), "12", ""),
    ]


def test_the_page_shows_the_last_step_by_age() -> None:
    text = page.page(state())
    assert f"Step {LAST.step} by age" in text
    assert "api/v1/steps.csv" in text
    assert 'id="step"' not in page.page(msgspec.structs.replace(pictures.BUSY, steps=[]))
