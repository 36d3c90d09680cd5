"""The next move is the cheapest towards the version that a group names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from echo2.coordinator.publishing.published import Published
from echo2.coordinator.scorer_weights.scorer_weights import (
    ScorerWeights,
    StepBy,
    StepTo,
    folder_of,
    next_move,
    remove_folders_above,
)
from echo2.engines.engine import Loaded
from echo2.weights.documents import Edge

LINE = [bytes([number]) * 32 for number in range(6)]


def edge(base: int | None, version: int, length: int = 100) -> Edge:
    return Edge(
        era=1, base=base, base_root=None if base is None else LINE[base], version=version, root=LINE[version],
        codec="c", payload_hash=bytes([version, base or 255]) * 16, length=length, chunk_size=1 << 18,
        chunk_root=bytes(32),
    )  # fmt: skip


EDGES = [edge(None, 0), *(edge(number, number + 1) for number in range(5)), edge(2, 4, 10)]


def at(present: int, behind: int = 0, ahead: int = 0) -> Loaded:
    return Loaded(
        root=LINE[present], parameters=1, nbytes=1,
        behind=LINE[present - behind : present][::-1], ahead=LINE[present + 1 : present + 1 + ahead],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loaded", "wanted", "move"),
    [
        pytest.param(at(3, behind=2), 1, StepTo(LINE[1]), id="what is behind is gone back to"),
        pytest.param(at(1, behind=1, ahead=2), 3, StepTo(LINE[3]), id="what was undone is made again"),
        pytest.param(at(2), 5, StepBy(EDGES[3], 2), id="versions are taken one by one, skips or not"),
        pytest.param(at(1, ahead=2), 5, StepTo(LINE[3]), id="a payload comes after what was undone"),
        pytest.param(at(4), 5, StepBy(EDGES[5], 4), id="the steps down to the oldest are kept"),
        pytest.param(at(3), 1, None, id="what is out of reach behind needs other weights"),
    ],
)
def test_each_version_is_reached_by_the_cheapest_move(loaded: Loaded, wanted: int, move: Any) -> None:
    assert next_move(loaded, LINE, LINE[1], EDGES, LINE[wanted]) == move


@pytest.mark.parametrize(
    ("loaded", "version", "before"),
    [
        pytest.param(at(3, behind=2), 3, 2, id="one step back"),
        pytest.param(at(3), 3, None, id="not journaled: no payload is read for it"),
        pytest.param(at(2, behind=2), 3, None, id="another version is loaded"),
        pytest.param(at(0), 0, None, id="the first version has none"),
        pytest.param(at(4, behind=3), 4, None, id="the first of an era has none either"),
    ],
)
def test_the_version_before_is_one_step_back_or_there_is_none(loaded: Loaded, version: int, before: int | None) -> None:
    versions = [Published(1 + (number > 3), number, LINE[number], b"", b"") for number in range(6)]
    weights = ScorerWeights(
        SimpleNamespace(loaded=loaded), SimpleNamespace(versions=versions), model=Path(), folder=Path(),  # type: ignore[arg-type]
        oldest=lambda: (1, 0),
    )  # fmt: skip
    assert weights.before(LINE[version]) == (None if before is None else versions[before])


@pytest.mark.parametrize(
    ("loaded", "snapshots", "stored", "loadable"),
    [
        pytest.param(at(4, behind=1), [5], EDGES[5:6], [3, 4, 5], id="the journals and the newest snapshot"),
        pytest.param(at(5), [5], EDGES[:3], [0, 1, 2, 5], id="payloads from nothing on"),
        pytest.param(at(5), [2], EDGES[6:], [2, 4, 5], id="an edge over several versions"),
        pytest.param(None, [], [], range(6), id="nothing is loaded, so nothing is known to be gone"),
    ],
)
def test_a_version_can_be_loaded_where_journals_snapshots_or_payloads_lead_to_it(
    loaded: Loaded | None, snapshots: list[int], stored: list[Edge], loadable: list[int]
) -> None:
    files = SimpleNamespace(
        snapshots=lambda: {LINE[one]: Path() for one in snapshots}, payloads=lambda: dict.fromkeys(stored, Path())
    )
    publisher = SimpleNamespace(stored=files)
    weights = ScorerWeights(
        SimpleNamespace(loaded=loaded), publisher, model=Path(), folder=Path(), oldest=lambda: (1, 0)  # type: ignore[arg-type]
    )  # fmt: skip
    assert [number for number, root in enumerate(LINE) if weights.may_load(root)] == list(loadable)


def test_unknown_weights_and_lost_payloads_give_no_move() -> None:
    stranger = Loaded(root=bytes(31) + b"x", parameters=1, nbytes=1)
    assert next_move(stranger, LINE, LINE[0], EDGES, LINE[3]) is None
    assert next_move(at(1), LINE, LINE[0], EDGES[:2], LINE[3]) is None
    assert next_move(at(1), LINE, LINE[0], EDGES, bytes(32 * [9])) is None


def test_each_scorer_has_a_folder_and_those_of_scorers_that_are_no_more_go(tmp_path: Path) -> None:
    assert [folder_of(tmp_path, number) for number in (1, 2, 3)] == [tmp_path, tmp_path / "2", tmp_path / "3"]
    for name in ("held", "2/held", "3/held", "12/made"):
        (tmp_path / name).mkdir(parents=True)
    remove_folders_above(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "held"]
    remove_folders_above(tmp_path / "there is none", 1)
