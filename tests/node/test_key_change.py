"""A node's key is copied and replaced: files, refusals, a kill, and a whole run that lets the standing follow."""

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from echo2.node import cli, key_change
from echo2.node.errors import BadConfig
from echo2.node.home import lock_home
from echo2.p2p.identity import generate_key, load_key, peer_id, public_bytes, write_key
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.units import DAY
from tests.support.clock import run_fake
from tests.support.cuts import cuts
from tests.support.fake_coordinator import make_node, until
from tests.support.swarm import accepted, make_swarm, wall, working

NOW = 1_800_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_key(tmp_path / "home/node.key", generate_key(), None)
    return tmp_path / "home"


def own(home: Path) -> str:
    return peer_id(public_bytes(load_key(home / "node.key", None)))


def test_a_backup_is_the_key_and_overwrites_nothing(home: Path, tmp_path: Path) -> None:
    key_change.backup(home, tmp_path / "copy", None)
    assert (tmp_path / "copy").read_bytes() == (home / "node.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    with pytest.raises(LocalFault, match="never overwritten"):
        key_change.backup(home, tmp_path / "copy", None)


@pytest.mark.parametrize("words", [["show"], ["backup", "copy"], ["rotate"], ["dispute"]])
def test_a_folder_without_a_node_is_named_and_not_made(words: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["keys", *words, "--home", str(tmp_path / "none")])
    assert result.exit_code == Exit.CONFIG
    assert "name the folder of a node with --home" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_rotated_key_is_another_one_and_the_old_one_is_kept(home: Path) -> None:
    before = own(home)
    told = "\n".join(key_change.rotate(home, None, NOW))
    assert before in told
    assert own(home) in told
    assert own(home) != before
    assert "points stay with the old key" in told
    assert key_change.CHAIN not in told
    (kept,) = home.glob("node-*.key")
    assert peer_id(public_bytes(load_key(kept, None))) == before
    result = CliRunner().invoke(cli.app, ["keys", "rotate", "--yes", "--home", str(home)])
    assert (result.exit_code, len(list(home.glob("node-*.key")))) == (0, 2)


def test_a_dispute_is_of_the_present_key_and_waits_for_the_next_greeting(home: Path) -> None:
    result = CliRunner().invoke(cli.app, ["keys", "dispute", "--home", str(home)])
    assert result.exit_code == Exit.CONFIG
    assert "no run was joined" in result.stderr
    folder = home / "runs" / "first"
    (folder / "trust").mkdir(parents=True)
    key = public_bytes(load_key(home / "node.key", None))
    assert not key_change.disputes(folder, key)
    (first, _) = key_change.dispute(home, None)
    assert own(home) in first
    assert key_change.disputes(folder, key)
    assert key_change.dispute(home, None)[0] == first
    key_change.rotate(home, None, NOW)
    assert not key_change.disputes(folder, public_bytes(load_key(home / "node.key", None)))


def test_a_node_that_runs_keeps_its_key(home: Path) -> None:
    before = own(home)
    with lock_home(home):
        result = CliRunner().invoke(cli.app, ["keys", "rotate", "--yes", "--home", str(home)])
    assert result.exit_code != 0
    assert "already runs" in result.stderr
    assert own(home) == before


def test_a_rotation_that_is_killed_leaves_a_node_with_a_key(home: Path) -> None:
    def life() -> Iterator[str]:
        yield own(home)
        key_change.rotate(home, None, NOW)
        yield own(home)

    kept = home.parent / "kept"
    shutil.copytree(home, kept, copy_function=shutil.copy2)
    for cut in cuts(life(), home):
        assert own(home) in (cut.before, cut.after), cut.where
        key_change.rotate(home, None, NOW)
        assert own(home) != cut.before, cut.where


async def ended(node: Any) -> None:
    """Have a node end its work, until each group has its answer."""
    node.daemon.interrupt("the owner")
    await until(lambda: not node.daemon.outbox.counts().get("received", 0) and node.daemon.outbox.unsent() == 0)


@pytest.mark.slow
def test_the_standing_follows_to_the_new_key_and_the_old_one_gets_no_lease(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path)
        home = tmp_path / "node"
        write_key(home / "node.key", generate_key())
        (home / "invite").write_text(swarm.invite().to_text())

        def life(path: Path = home):
            key = load_key(path / "node.key")
            return make_node(swarm.network, path, swarm.invite(), key=key, local=lambda: int(wall() * 1000))

        async with swarm.coordinating(), working(node := life()):
            await until(lambda: accepted(node) >= 4, 120)
            await ended(node)
        shutil.copytree(home, tmp_path / "stolen")
        old = own(home)
        try:
            key_change.rotate(home, None, int(wall() * 1000))
        except BadConfig:
            pytest.fail("groups wait for their answer")
        with pytest.raises(BadConfig, match="of which 1 joined run did not hear yet: start the node once"):
            key_change.rotate(home, None, int(wall() * 1000))
        shutil.copytree(home, tmp_path / "given up")
        key_change.rotate(tmp_path / "given up", None, int(wall() * 1000), give_up=True)
        assert own(tmp_path / "given up") != own(home)
        async with swarm.coordinating() as coordinator, working(again := life()):
            await until(lambda: accepted(again) >= 2, 120)
            accounts = coordinator.group_service.accounts
            now = int(wall() * 1000)
            new = load_key(home / "node.key")
            assert accounts.account(public_bytes(new)).accepted >= 6
            assert accounts.of(public_bytes(load_key(tmp_path / "stolen/node.key")), now).code == "banned"
            await ended(again)
        assert own(home) != old
        (heard,) = home.glob(f"runs/*/{key_change.HEARD_FILE}")
        assert heard.read_text().split()[0] == own(home)
        now = int(heard.read_text().split()[1])
        with pytest.raises(BadConfig, match=r"less than a day ago.*repeat this after .* UTC; with --give-up both stay"):
            key_change.rotate(home, None, now + DAY - 1)
        shutil.copytree(home, tmp_path / "in a hurry")
        assert key_change.CHAIN in key_change.rotate(tmp_path / "in a hurry", None, now, give_up=True)
        assert key_change.CHAIN in key_change.rotate(home, None, now + DAY)

    run_fake(main)
