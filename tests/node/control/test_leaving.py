"""Leaving a run: what is deleted, what stays, and what a group that waits for its receipt keeps from being lost."""

from contextlib import closing
from pathlib import Path

import pytest

from echo2.node.control.leaving import leave
from echo2.node.errors import BadConfig, TryLater
from echo2.node.home import invite_of_joined_run, lock_home, run_folder
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.receipts import list_submissions
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import load_or_create_key, public_bytes
from tests.support.nfs_disk import nfs_disk, only_linux

INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/192.0.2.1/tcp/4310"])
LEASE = b"a lease of a run"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose node has worked."""
    place = tmp_path / "node"
    folder = run_folder(place, INVITE.run)
    for name in ("store/payloads", "weights", "model", "trust"):
        (folder / name).mkdir(parents=True)
    (folder / "store/payloads/one").write_bytes(bytes(2_000_000))
    (folder / "trust/root").write_bytes(b"root")
    (place / "invite").write_text(INVITE.to_text())
    (place / "notes.txt").write_text("mine")
    load_or_create_key(place / "node.key")
    return place


def put_group(home: Path) -> None:
    key = public_bytes(load_or_create_key(home / "node.key"))
    with closing(Outbox(run_folder(home, INVITE.run) / "outbox.sqlite", node=key, limit=8)) as outbox:
        outbox.open_lease(LEASE)
        outbox.put(LEASE, b"a group", 0, b"")


def never(seconds: float) -> None:
    raise AssertionError("nothing is awaited")


def test_weights_and_invite_go_and_key_and_receipts_stay(home: Path) -> None:
    put_group(home)
    said: list[str] = []
    leave(home, 1.0, said.append, forget=False, sleep=never)
    folder = run_folder(home, INVITE.run)
    assert sorted(path.name for path in folder.iterdir()) == ["outbox.sqlite", "trust"]
    assert (home / "node.key").exists()
    assert not (home / "invite").exists()
    with pytest.raises(BadConfig, match="no run was joined"):
        invite_of_joined_run(home)
    assert [row["lease"] for row in list_submissions(home, 10)] == [LEASE.hex()]
    assert "2.0 MB of weights are deleted" in said[0]


def test_forgetting_leaves_only_what_is_not_the_nodes(home: Path) -> None:
    leave(home, 1.0, lambda sentence: None, forget=True, sleep=never)
    assert [path.name for path in home.iterdir()] == ["notes.txt"]


@only_linux
def test_forgetting_leaves_no_home_on_nfs_which_keeps_an_open_lock(home: Path) -> None:
    (home / "notes.txt").unlink()
    with nfs_disk(home.parent):
        leave(home, 1.0, lambda sentence: None, forget=True, sleep=never)
        assert not home.exists()


def test_a_group_that_waits_for_its_receipt_keeps_the_key(home: Path) -> None:
    put_group(home)
    with pytest.raises(BadConfig, match="1 group without a receipt"):
        leave(home, 1.0, lambda sentence: None, forget=True, sleep=never)
    assert (home / "node.key").exists()
    assert (run_folder(home, INVITE.run) / "store/payloads/one").exists()


@pytest.mark.parametrize("forget", [False, True])
def test_a_node_that_does_not_end_loses_nothing(home: Path, forget: bool) -> None:
    waits: list[float] = []
    with lock_home(home), pytest.raises(TryLater, match="has not ended after 2 s"):
        leave(home, 2.0, lambda sentence: None, forget=forget, sleep=waits.append)
    assert sum(waits) == 2.0
    assert (run_folder(home, INVITE.run) / "weights").exists()


def test_a_home_without_a_node_or_a_run_is_named(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="nothing to leave"):
        leave(tmp_path / "elsewhere", 1.0, lambda sentence: None, forget=False)
    leave(home, 1.0, lambda sentence: None, forget=False, sleep=never)
    with pytest.raises(BadConfig, match="no run was joined"):
        leave(home, 1.0, lambda sentence: None, forget=False, sleep=never)
