"""Positions whose prompts are chosen by their last groups: made again, bounded in what they keep."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.prompts import prompt_window
from echo2.coordinator.prompts.prompt_choice import CANDIDATES, ChoiceSummary, choose_prompt
from echo2.coordinator.prompts.prompt_window import POSITIONS_AHEAD
from echo2.coordinator.verdicts.token_storage import CHALLENGE_WINDOW_MS
from echo2.engines.engine import SampleScore
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from tests.support.fleet import key, request_lease
from tests.support.group_world import ALICE, BOB, World, group, honest_scores

STORED = "SELECT position, summary, waiting FROM chosen_prompts ORDER BY position"


@pytest.fixture
def varied(tmp_path: Path) -> World:
    return World(tmp_path, batch_groups=200, prompts="variance")


def brought(world: World, node: bytes, texts: list[str] | None = None) -> Lease:
    """Lease a prompt to a node on a connection of its own, and accept its group."""
    lease = request_lease(world, node.hex(), node)
    world.submit(group(lease, texts), node)
    world.decide_all()
    return lease


def test_the_prompt_of_a_lease_can_be_made_again_from_what_is_stored_with_it(varied: World) -> None:
    leases = [brought(varied, key("node", number % 5)) for number in range(60)]
    database, source = varied.group_service.database, varied.group_service.leases.positions.prompts
    for lease in leases:
        position = database.value("SELECT position FROM leases WHERE id = ?", (lease.id,))
        stored = database.value("SELECT summary FROM chosen_prompts WHERE position = ?", (position,))
        summary, place = msgspec.msgpack.decode(stored, type=ChoiceSummary), source.place(position)
        assert len(summary.candidates) == CANDIDATES
        assert choose_prompt(place.order, place.position, summary) == lease.index


def test_a_dropped_prompt_comes_first_again_and_is_the_same_after_other_verdicts_and_a_restart(varied: World) -> None:
    dropped = request_lease(varied, "alice", ALICE)
    assert isinstance(dropped, Lease)
    for number in range(30):
        brought(varied, key("node", number % 5))
    varied.now = dropped.expires + 1
    varied.group_service.tick(varied.now)
    varied.reopen()
    again = request_lease(varied, "known", key("node"))
    assert (again.index, again.prompt) == (dropped.index, dropped.prompt)


def test_a_restart_changes_no_prompt_that_was_chosen(varied: World) -> None:
    brought(varied, ALICE)
    waiting = varied.group_service.leases.positions.window.waiting()
    assert len(waiting) == POSITIONS_AHEAD - 1
    varied.reopen()
    leases = [request_lease(varied, f"{number}") for number in range(POSITIONS_AHEAD - 1)]
    assert [lease.index for lease in leases if isinstance(lease, Lease)] == [one.prompt for one in waiting]


def test_positions_chosen_before_the_setting_was_turned_off_are_leased_first(varied: World) -> None:
    dropped = request_lease(varied, "alice", ALICE)
    assert isinstance(dropped, Lease)
    waiting = varied.group_service.leases.positions.window.waiting()
    varied._terms["prompts"] = "order"
    varied.now = dropped.expires + 1
    varied.group_service.tick(varied.now)
    varied.reopen()
    leases = [request_lease(varied, f"{number}") for number in range(POSITIONS_AHEAD + 3)]
    indices = [lease.index for lease in leases if isinstance(lease, Lease)]
    source = varied.group_service.leases.positions.prompts
    assert indices[0] == dropped.index
    assert indices[1:POSITIONS_AHEAD] == [one.prompt for one in waiting]
    assert indices[POSITIONS_AHEAD:] == [source.at(POSITIONS_AHEAD + number).index for number in range(3)]


def test_only_accepted_groups_of_training_prompts_count(varied: World) -> None:
    database = varied.group_service.database
    refused = request_lease(varied, "a", ALICE)
    wrong = group(refused)
    varied.submit(wrong, ALICE)
    (undecided,) = varied.group_service.list_undecided()
    varied.decide(undecided, [SampleScore(logprobs=s.logprobs, margins=[1.0] * 4) for s in honest_scores(wrong)])
    assert database.value("SELECT count(*) FROM prompt_groups") == 0
    good = brought(varied, BOB, ["0", "1"])
    assert database.all("SELECT task, prompt FROM prompt_groups") == [("reverse", good.index)]


def test_in_order_nothing_is_chosen_and_nothing_recorded(tmp_path: Path) -> None:
    world = World(tmp_path)
    brought(world, ALICE)
    for table in ("chosen_prompts", "prompt_groups", "prompt_means"):
        assert world.group_service.database.value(f"SELECT count(*) FROM {table}") == 0


def test_a_task_of_too_many_prompts_keeps_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_window, "MOST_PROMPTS", 100)
    world = World(tmp_path, batch_groups=200, prompts="variance")
    source = world.group_service.leases.positions.prompts
    leases = [brought(world, key("node", number % 3)) for number in range(40)]
    assert [lease.index for lease in leases] == [source.at(position).index for position in range(40)]
    assert world.group_service.database.value("SELECT count(*) FROM prompt_groups") == 0


def test_a_choice_is_forgotten_with_the_content_of_its_last_lease(varied: World) -> None:
    brought(varied, ALICE)
    dropped = request_lease(varied, "alice", ALICE)
    varied.now = dropped.expires + 1
    varied.group_service.tick(varied.now)
    service = varied.group_service
    while service.forget([], 9, 1, varied.now + CHALLENGE_WINDOW_MS + 1):
        pass
    rows = service.database.all(STORED)
    assert [(position, waiting) for position, _, waiting in rows][:2] == [(1, 0), (2, 1)], "1 is to be leased again"
    again = request_lease(varied, "other")
    assert again.index == dropped.index
    varied.submit(group(again), key("other"))
    varied.decide_all()
    varied.now = again.expires + 1
    while service.forget([], 9, 1, varied.now + CHALLENGE_WINDOW_MS + 1):
        pass
    assert service.database.value("SELECT count(*) FROM chosen_prompts WHERE waiting = 0") == 0


def test_prompts_that_cannot_be_posed_are_left_out(varied: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from echo2.tasks.task import TaskFault

    source = varied.group_service.leases.positions.prompts
    varied.group_service.leases.positions.prepare()
    bad = {one.prompt for one in varied.group_service.leases.positions.window.waiting()[:3]}
    pose = source.at

    def at(position: int, index: int | None = None) -> object:
        if index in bad:
            raise TaskFault("it cannot be posed", verified=False)
        return pose(position, index)

    monkeypatch.setattr(source, "at", at)
    lease = varied.lease(ALICE)
    assert lease.index not in bad
    assert next(row[0] for row in varied.group_service.database.all(STORED)) == 3


@pytest.mark.slow
def test_a_choice_costs_no_more_after_many_groups(tmp_path: Path) -> None:
    from echo2.coordinator.prompts.prompt_records import figures_of
    from tests.support import sqlite_cost

    costs = []
    for many in (0, 5_000):
        folder = tmp_path / f"{many}"
        folder.mkdir()
        world = World(folder, batch_groups=20_000, prompts="variance")
        records, database = world.group_service.leases.positions.window._records, world.group_service.database
        with database.transaction():
            for number in range(many):
                figures = figures_of(f"{number % 50}", b"%d" % number, [1.0, 0.0])
                records.add("reverse", 1, number % 5_000, figures)
        for number in range(3 * POSITIONS_AHEAD):
            request_lease(world, f"early {number}")
        costs.append(sqlite_cost.instructions(database, partial(request_lease, world, "late")))
    assert costs[1] <= 1.5 * costs[0] + 20, costs


def test_a_document_of_a_lease_says_nothing_of_the_choice(varied: World, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = World(tmp_path / "plain", batch_groups=200)
    one, other = varied.lease(ALICE), plain.lease(ALICE)
    assert len(encode(one)) == len(encode(msgspec.structs.replace(other, index=one.index, prompt=one.prompt)))
