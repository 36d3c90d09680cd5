"""Teams: who is in one, which work counts for it, and what of a name remains."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.metrics.views import TeamRow
from echo2.coordinator.nodes import teams
from echo2.coordinator.nodes.operator_remarks import record_remark
from echo2.coordinator.web.team_rows import MOST_TEAMS, read_teams
from echo2.ledger.audited_work import HOUR
from echo2.ledger.ledger_entries import Entry, canonical, chain_hash
from echo2.ledger.team_work import TEAM_SET, TeamReplay, TeamSet, TeamWork
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import LocalFault
from tests.support.group_world import ALICE, HELLO, World
from tests.support.sqlite_cost import instructions

BOB = b"b" * 32
WEEK = 168 * HOUR


def state(world: World, node: bytes, team: str) -> None:
    """Have a node say hello with a team, and let the coordinator's second pass."""
    service = world.group_service
    service.registry.register(node, msgspec.structs.replace(HELLO, team=team), None, world.now)
    service.tick(world.now)


def shown(world: World) -> dict[str, TeamRow]:
    return {row.name: row for row in read_teams(world.group_service.database, world.now)}


def entries(world: World) -> list[Entry]:
    return list(world.group_service.ledger.entries())


def stated(world: World) -> list[TeamSet]:
    return [msgspec.msgpack.decode(one.facts, type=TeamSet) for one in entries(world) if one.kind == TEAM_SET]


def replayed(world: World) -> TeamReplay:
    replay = TeamReplay()
    for entry in entries(world):
        replay.take(entry)
    return replay


def worker(world: World, node: bytes, team: str) -> int:
    """Make a node with accepted work that has a team from then on; return the work before, milli-RE."""
    state(world, node, "")
    world.accepted(node)
    state(world, node, team)
    return int(world.group_service.database.value("SELECT weight FROM nodes WHERE key = ?", (node,)))


def test_work_counts_from_joining_on_and_stays_with_the_earlier_team(world: World) -> None:
    before = worker(world, ALICE, "Foxes")
    assert shown(world) == {}, "a team without work is listed"
    world.accepted(ALICE)
    foxes = shown(world)["Foxes"]
    assert (foxes.members, foxes.groups, foxes.weight, foxes.score) == (1, 1, before, before)
    world.now += teams.TEAM_CHANGE_MS
    state(world, ALICE, "Owls")
    world.accepted(ALICE)
    world.accepted(ALICE)
    both = shown(world)
    assert (both["Foxes"].members, both["Foxes"].groups) == (0, 1)
    assert (both["Owls"].members, both["Owls"].groups) == (1, 2)
    assert list(both) == ["Owls", "Foxes"]


def test_the_golden_entry_of_a_team(repository: Path) -> None:
    known = json.loads((repository / "tests/vectors/teams.json").read_text())
    team = hashlib.sha256(bytes.fromhex(known["salt"]) + known["name"].encode()).digest()
    node = peer_id(ALICE)
    facts = msgspec.msgpack.encode(TeamSet(node=node, team=team))
    entry = canonical(2, known["at"], TEAM_SET, f"team:{node}:2", (), facts)
    assert (entry.hex(), chain_hash(bytes(32), entry).hex()) == (known["canonical"], known["hash"])


def test_an_entry_of_a_team_has_the_form_of_the_golden_one(world: World) -> None:
    worker(world, ALICE, "Foxes")
    world.accepted(ALICE)
    (entry,) = [one for one in world.group_service.ledger.entries() if one.kind == TEAM_SET]
    fact = msgspec.msgpack.decode(entry.facts, type=TeamSet)
    assert (entry.key, entry.postings, entry.facts) == (
        f"team:{peer_id(ALICE)}:{entry.seq}",
        (),
        msgspec.msgpack.encode(fact),
    )
    assert len(fact.team) == 32


def test_names_that_look_alike_are_one_team(world: World) -> None:
    worker(world, ALICE, "Foxes")
    worker(world, BOB, "f\u043exes!")  # a Cyrillic o
    world.accepted(ALICE)
    world.accepted(BOB)
    assert {name: (row.members, row.groups) for name, row in shown(world).items()} == {"Foxes": (2, 2)}


def test_a_free_key_makes_no_team_and_no_entry(world: World) -> None:
    for number in range(50):
        state(world, number.to_bytes(32, "big"), f"team {number}")
    assert stated(world) == []
    assert world.group_service.database.value("SELECT count(*) FROM teams") == 0


def test_a_node_changes_its_team_once_a_day_at_most(world: World) -> None:
    worker(world, ALICE, "one")
    for number in range(20):
        state(world, ALICE, f"team {number}")
    assert len(stated(world)) == 1
    world.now += teams.TEAM_CHANGE_MS
    world.group_service.tick(world.now)
    assert len(stated(world)) == 2
    world.now += teams.TEAM_CHANGE_MS
    state(world, ALICE, "")
    assert stated(world)[-1] == TeamSet(node=peer_id(ALICE), team=b"")
    world.accepted(ALICE)
    assert shown(world) == {}, "work of a node without a team counts for one"


def test_the_ledger_has_a_commitment_alone_and_a_name_that_is_blotted_out_is_gone(world: World) -> None:
    worker(world, ALICE, "Familie Muster")
    world.accepted(ALICE)
    (fact,) = stated(world)
    database = world.group_service.database
    salt, name = database.one("SELECT salt, name FROM teams") or (b"", "")
    assert fact.team == hashlib.sha256(salt + name.encode()).digest()
    assert all(b"Muster" not in entry.facts for entry in entries(world))
    said = record_remark(world.group_service.accounts, "blot-team", "familie muster", "", world.now)
    assert fact.team.hex()[:16] in said
    assert database.all("SELECT name, skeleton, salt FROM teams") == [("", "", b"")]
    assert database.all("SELECT team, team_written FROM nodes WHERE key = ?", (ALICE,)) == [("", "")]
    world.accepted(ALICE)
    (row,) = read_teams(database, world.now)
    assert (row.id, row.name, row.groups) == (fact.team.hex(), "", 2)
    with pytest.raises(LocalFault, match="no team of this run is named"):
        record_remark(world.group_service.accounts, "blot-team", "familie muster", "", world.now)


def test_the_ranking_follows_from_the_entries_alone_also_after_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=50)
    for node, team in ((ALICE, "one"), (BOB, "two")):
        worker(world, node, team)
        for _ in range(2 + (node == BOB)):
            world.now += 30 * HOUR
            world.accepted(node)
    world.reopen()
    replay = replayed(world)
    rows = read_teams(world.group_service.database, replay.at)
    assert [(row.id, row.members, row.groups, row.weight, row.score) for row in rows] == [
        (one.team.hex(), one.members, one.groups, one.weight, one.score) for one in replay.ranking()
    ]
    assert rows[0].score < rows[0].weight


def test_a_score_is_halved_every_seven_days_however_often_it_is_read() -> None:
    done = TeamWork().with_work(1, 8000, at=5)
    assert [done.score_at(5 + weeks * WEEK) for weeks in range(4)] == [8000, 4000, 2000, 1000]
    assert done.score_at(0) == 8000, "a clock that was set back"
    later = done.with_work(1, 1000, at=5 + WEEK)
    assert (later.weight, later.score_at(5 + WEEK)) == (9000, 5000)
    for hour in range(168):
        later = later.with_work(0, 0, at=5 + WEEK + hour * HOUR)
    assert later.score_at(5 + 2 * WEEK) in (2499, 2500)


def test_a_list_is_bounded(world: World) -> None:
    database = world.group_service.database
    for number in range(MOST_TEAMS + 9):
        row = (number.to_bytes(32, "big"), f"t{number}", f"t{number}", b"s", number + 1)
        database.do("INSERT INTO teams VALUES (?, ?, ?, ?, 1, ?, 0, 0)", row)
    rows = read_teams(database, world.now)
    assert (len(rows), rows[0].name) == (MOST_TEAMS, f"t{MOST_TEAMS + 8}")


def test_a_team_of_control_characters_or_too_long_is_cut_to_its_printed_form(world: World, tmp_path: Path) -> None:
    worker(world, ALICE, "a\u202eb\x1b[31m" + "x" * 30)
    world.accepted(ALICE)
    (name,) = shown(world)
    assert "\x1b" not in name
    assert "\u202e" not in name
    assert len(name) <= 40


def test_nodes_that_are_in_the_team_they_state_cost_nothing_each_second(world: World) -> None:
    service = world.group_service
    query = "INSERT INTO nodes (key, name, software, engine, device, addresses, first_seen, last_seen, weight)"
    for number in range(500):
        node = number.to_bytes(32, "big")
        service.database.do(f"{query} VALUES (?, 'n', 's', 'e', 'd', x'', 1, 1, 1)", (node,))
    settled = teams.Teams(service.database, service.ledger, bytes)
    assert instructions(service.database, lambda: settled.settle(world.now)) < 10
