"""The reports `echo2-coord nodes ls` and `show`."""

import json
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.p2p.identity import peer_id
from echo2.runtime.exit_codes import Exit
from tests.support.group_world import ALICE, BOB
from tests.support.nodes_commands import run_nodes

pytestmark = pytest.mark.usefixtures("at_the_time")


def test_nodes_are_listed_with_their_standing_the_one_seen_last_first(folder: Path) -> None:
    first, alice, bob = run_nodes("ls", "--home", folder).stdout.splitlines()
    assert first.split() == ["node", "accepted", "decided", "last", "seen", "name", "standing"]
    assert alice.startswith(peer_id(ALICE))
    assert "new, suspended until 2023-11-14 23:13 UTC (incomplete)" in alice
    assert "alice?[2J" in alice, "a chosen name does not reach the terminal unchanged"
    assert bob.split()[0] == peer_id(BOB)
    assert bob.endswith("new")


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("--out", "suspended"), [ALICE]),
        (("--out", "banned"), []),
        (("--rank", "new"), [ALICE, BOB]),
        (("--rank", "known"), []),
        (("--most", "1"), [ALICE]),
        (("--most", "1", "--page", "2"), [BOB]),
        (("--most", "1", "--page", "3"), []),
    ],
)
def test_a_list_is_filtered_and_paged(words: tuple[str, ...], listed: list[bytes], folder: Path) -> None:
    rows = json.loads(run_nodes("ls", "--home", folder, "--json", *words).stdout)
    assert [row["node"] for row in rows] == [peer_id(node) for node in listed]


def test_a_doubted_key_is_new_in_the_list_as_in_its_own_report(folder: Path) -> None:
    with Database.open(folder / "run.sqlite") as database, database.transaction():
        database.do("UPDATE accounts SET accepted = 1000, groups = 1000, doubted = 1 WHERE node = ?", (BOB,))
    listed = json.loads(run_nodes("ls", "--home", folder, "--json", "--rank", "new").stdout)
    assert peer_id(BOB) in [row["node"] for row in listed]
    shown = json.loads(run_nodes("show", peer_id(BOB), "--home", folder, "--json").stdout)
    assert shown["key"]["rank"] == "new"


def test_one_node_is_shown_with_reasons_strikes_and_the_evidence_of_a_suspension(folder: Path) -> None:
    shown = run_nodes("show", peer_id(ALICE), "--home", folder).stdout
    with Database.read(folder / "run.sqlite") as database:
        evidence = database.value("SELECT hash FROM submissions ORDER BY at DESC LIMIT 1").hex()
    for text in ("new, suspended until 2023-11-14 23:13 UTC", "incomplete 3", "ok 1", evidence, "alice?[2J"):
        assert text in shown
    report = json.loads(run_nodes("show", peer_id(ALICE), "--home", folder, "--json").stdout)
    assert report["codes"] == {"incomplete": 3, "ok": 1}
    assert [one["code"] for one in report["last"]] == ["incomplete"] * 3 + ["ok"]
    assert report["strikes"] == []
    assert len(report["entries"]) == 1
    stranger = run_nodes("show", peer_id(bytes([9]) * 32), "--home", folder)
    assert (stranger.exit_code, "last seen    never" in stranger.stdout) == (0, True)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for words in (("ls",), ("vouch", peer_id(BOB))):
        done = run_nodes(*words, "--home", tmp_path)
        assert done.exit_code == Exit.CONFIG
        assert str(tmp_path / "run.sqlite") in done.stderr
    assert list(tmp_path.iterdir()) == []
