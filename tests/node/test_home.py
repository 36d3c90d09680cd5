"""The home folder of a node: its lock, and the commands that find it locked."""

import os
from pathlib import Path

import pytest

from echo2.node.errors import BadConfig, TryLater
from echo2.node.home import check_place, invite_of_joined_run, lock_home, run_folder
from echo2.p2p.discovery.invite import Invite


def test_two_daemons_never_share_a_home(tmp_path: Path) -> None:
    with lock_home(tmp_path), pytest.raises(TryLater, match=f"process {os.getpid()}"), lock_home(tmp_path):
        pass
    with lock_home(tmp_path):
        pass


def test_a_home_on_a_path_that_is_no_folder_is_a_bad_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadConfig, match="choose another folder with --home"), lock_home(tmp_path / "file" / "home"):
        pass


def test_a_home_that_cannot_be_made_is_known_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_place(tmp_path / "new" / "home")
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(BadConfig, match=f"cannot make .*/new/home: {tmp_path} is not writable; choose another folder"):
        check_place(tmp_path / "new" / "home")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    assert not (tmp_path / "new").exists()


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one, other = run_folder(tmp_path, b"a" * 32), run_folder(tmp_path, b"b" * 32)
    assert one == tmp_path / "runs" / "6161616161616161"
    assert one != other


def test_a_home_without_an_invite_names_the_command_that_joins(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="echo2-node join INVITE"):
        invite_of_joined_run(tmp_path)
    invite = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"])
    (tmp_path / "invite").write_text(invite.to_text())
    assert invite_of_joined_run(tmp_path) == invite
