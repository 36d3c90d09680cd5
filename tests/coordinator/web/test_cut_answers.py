"""The share of answers that the token limit cut: on the page, in `status` and in the metrics."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import page, prometheus
from tests.support import pictures

LAST = pictures.BUSY.steps[-1]


def with_cut(share: float | None) -> RunState:
    last = msgspec.structs.replace(LAST, cut_answers=share)
    return msgspec.structs.replace(pictures.BUSY, steps=[*pictures.BUSY.steps[:-1], last])


def gauge(state: RunState) -> list[float]:
    families = text_string_to_metric_families(prometheus.exposition(state).decode())
    return [sample.value for family in families for sample in family.samples if "cut_answers" in sample.name]


def test_a_share_is_shown_everywhere() -> None:
    state = with_cut(0.125)
    assert f"The token limit cut 12 % of the answers of step {LAST.step}" in page.page(state)
    assert "cut      12.5 % of that step's answers, at the token limit run.limit" in status.lines(state)
    assert gauge(state) == [0.125]


@pytest.mark.parametrize("share", [0.0, None])
def test_no_answer_cut_and_no_measurement_are_told_apart_by_the_metrics_alone(share: float | None) -> None:
    state = with_cut(share)
    assert "The token limit cut" not in page.page(state)
    assert not any(text.startswith("cut") for text in status.lines(state))
    assert gauge(state) == ([] if share is None else [0.0])
