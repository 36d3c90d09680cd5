"""The opening of a run: its folder, its Roots, its one user."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from echo2.node.errors import TrustFailure, TryLater
from echo2.node.home import run_folder
from echo2.node.run_context import RunContext
from echo2.p2p.identity import generate_key, public_bytes
from tests.support.fake_coordinator import START, FakeCoordinator

KEY = generate_key()


def opened(home: Path, coordinator: FakeCoordinator, **changes: object) -> RunContext:
    invite = msgspec.structs.replace(coordinator.invite(), **changes)
    return RunContext.open(home, invite, KEY, local=lambda: START, seed=1)


def test_a_run_is_known_by_its_invite_and_the_node_by_its_key(tmp_path: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator")
    context = opened(tmp_path / "home", coordinator)
    with closing(context.store):
        assert (context.run, context.node) == (coordinator.run, public_bytes(KEY))
        assert context.folder == run_folder(tmp_path / "home", coordinator.run)
        assert context.clock.now() == START
        assert context.trust_store.serial is None


def test_stored_roots_of_another_run_end_with_a_trust_failure(tmp_path: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator")
    context = opened(tmp_path / "home", coordinator)
    context.trust_store.update_roots(coordinator.roots, START)
    context.store.close()
    with pytest.raises(TrustFailure, match="invite"):
        opened(tmp_path / "home", coordinator, root_hash=b"x" * 32)


def test_a_damaged_stored_root_ends_with_a_trust_failure_that_names_the_file(tmp_path: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator")
    context = opened(tmp_path / "home", coordinator)
    context.trust_store.update_roots(coordinator.roots, START)
    context.store.close()
    damaged = context.folder / "trust" / "root.000001"
    damaged.write_bytes(b"\xff" * 100)
    with pytest.raises(TrustFailure, match=r"root.000001 is no Root .*move it away"):
        opened(tmp_path / "home", coordinator)
    damaged.unlink()
    opened(tmp_path / "home", coordinator).store.close()


def test_a_store_that_another_process_uses_is_tried_later(tmp_path: Path) -> None:
    coordinator = FakeCoordinator(tmp_path / "coordinator")
    context = opened(tmp_path / "home", coordinator)
    with closing(context.store), pytest.raises(TryLater):
        opened(tmp_path / "home", coordinator)
