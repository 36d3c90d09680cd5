"""The operator's remarks on keys, with and without a running coordinator."""

from pathlib import Path

import pytest

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.operator_remarks import MOST_WORDS
from echo2.ledger.standing import FOREVER_MS, Rank
from echo2.p2p.identity import peer_id
from echo2.runtime.exit_codes import Exit
from tests.support.commanded_run import commanded
from tests.support.group_world import ALICE, BOB
from tests.support.nodes_commands import run_nodes

pytestmark = pytest.mark.usefixtures("at_the_time")


def standing_of(folder: Path, node: bytes) -> tuple[Rank, int | None]:
    with Database.read(folder / "run.sqlite") as database:
        account = Accounts(database, Ledger(database)).of(node, 1_700_000_010_000)
        return account.rank, account.suspended_until


def test_without_a_coordinator_a_remark_goes_into_the_ledger_at_once(folder: Path) -> None:
    assert run_nodes("vouch", peer_id(BOB), "--home", folder).stdout == f"{peer_id(BOB)} is known\n"
    assert (
        run_nodes("vouch", peer_id(BOB), "--home", folder).stdout == f"{peer_id(BOB)} was vouched for before: known\n"
    )
    banned = run_nodes("ban", peer_id(BOB), "--why", "spam", "--home", folder)
    assert banned.stdout == f"{peer_id(BOB)} is known, banned: spam\n"
    assert run_nodes("unban", peer_id(BOB), "--home", folder).stdout == f"{peer_id(BOB)} is known\n"
    coloured = run_nodes("ban", peer_id(BOB), "--why", "red\x1b[31m\nand \u202eturned", "--home", folder)
    assert coloured.stdout == f"{peer_id(BOB)} is known, banned: red?[31m and ?turned\n"
    assert run_nodes("unban", peer_id(BOB), "--home", folder).exit_code == 0
    assert "neither banned nor suspended" in run_nodes("unban", peer_id(BOB), "--home", folder).stdout
    assert run_nodes("note", peer_id(BOB), "a friend's machine", "--home", folder).exit_code == 0
    shown = run_nodes("show", peer_id(BOB), "--home", folder).stdout
    assert "noted: a friend's machine" in shown
    assert "known, vouched for" in shown
    with Database.read(folder / "run.sqlite") as database:
        kinds = [entry.kind for entry in Ledger(database).entries() if entry.kind != "node.suspended"]
        Ledger(database).verify()
    assert kinds[-4:] == ["node.unbanned", "node.banned", "node.unbanned", "node.noted"]


def test_a_suspension_is_ended_by_hand(folder: Path) -> None:
    assert standing_of(folder, ALICE)[1] is not None
    assert (
        run_nodes("unban", peer_id(ALICE), "--home", folder, "--why", "our fault").stdout
        == f"{peer_id(ALICE)} is new\n"
    )
    assert standing_of(folder, ALICE) == ("new", None)


def test_a_running_coordinator_writes_the_remark_itself(folder: Path) -> None:
    with commanded(folder):
        done = run_nodes("ban", peer_id(BOB), "--why", "spam", "--home", folder)
        assert done.stdout == f"{peer_id(BOB)} is new, banned: spam\n", done.stderr
        assert standing_of(folder, BOB) == ("new", FOREVER_MS)
        refused = run_nodes("ban", peer_id(BOB), "--why", " ", "--home", folder)
        assert (refused.exit_code, "say why" in refused.stderr) == (Exit.CONFIG, True)
        assert [row.split()[0] for row in run_nodes("ls", "--home", folder).stdout.splitlines()[1:]] == [
            peer_id(ALICE),
            peer_id(BOB),
        ]


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "a name": (("ban", "alice", "--why", "spam"), "name a node by its peer id; `echo2-coord nodes ls` shows them"),
    "a novel": (("note", peer_id(BOB), "x" * (MOST_WORDS + 1)), f"say it in {MOST_WORDS}"),
    "an empty note": (("note", peer_id(BOB), " "), "the note is empty"),
    "another's name to show": (("show", "bob"), "name a node by its peer id"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_reported_in_one_line_and_writes_nothing(what: str, folder: Path) -> None:
    with Database.read(folder / "run.sqlite") as database:
        before = Ledger(database).tip()
    words, sentence = WRONG[what]
    done = run_nodes(*words, "--home", folder)
    assert done.exit_code == Exit.CONFIG
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    with Database.read(folder / "run.sqlite") as database:
        assert Ledger(database).tip() == before
