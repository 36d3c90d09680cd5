"""The dashboard and the alert rules name metrics that a coordinator has, with labels that those have."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from echo2.coordinator.web import prometheus
from tests.support import pictures
from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "monitoring"


def exposed() -> dict[str, set[str]]:
    """Return each metric of a busy run with the labels that it has."""
    metrics: dict[str, set[str]] = {}
    for row in b"".join(map(prometheus.exposition, pictures.EVERY_METRIC)).decode().splitlines():
        if row.startswith("# TYPE "):
            metrics.setdefault(row.split()[2], set())
        elif row and not row.startswith("#"):
            name, _, labels = row.partition("{")
            metrics.setdefault(name.split()[0], set()).update(re.findall(r'(\w+)="', labels))
    return metrics


def expressions() -> Iterator[tuple[str, str]]:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for one in board["annotations"]["list"]:
        yield one["expr"], one["titleFormat"]
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        yield rule["expr"], rule["annotations"]["summary"]


@pytest.mark.parametrize(("expression", "words"), [*expressions()])
def test_an_expression_names_metrics_and_labels_that_exist(expression: str, words: str) -> None:
    metrics = exposed()
    named = re.findall(r"echo2_\w+", f"{expression} {words}")
    assert named
    assert set(named) <= metrics.keys()
    labels = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", words)) | set(re.findall(r"by \((\w+)\)", expression))
    known = set[str]().union(*(metrics[name] for name in named))
    assert labels <= known, f"labels are {known}"


def test_every_alert_says_what_is_wrong_in_a_sentence() -> None:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    assert all(len(rule["annotations"]["summary"]) > 15 for rule in group["rules"])
