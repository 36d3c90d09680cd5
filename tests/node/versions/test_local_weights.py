"""The local weights: stepped in place, interrupted by a kill at every write, replaced as a whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.node.versions.local_weights import InvalidChain, LocalWeights
from echo2.p2p.envelope import Verified, document_hash, verify_named
from echo2.p2p.identity import generate_key
from echo2.weights.diff import Payload, encode
from echo2.weights.documents import Edge
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import nudged, random_table, write_table
from tests.support.clock import on_fake_clock
from tests.support.cuts import cuts
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.quick_disk import quick_folder
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


class Dying(InProcessEngine):
    """An engine whose process dies in its next step, before or after its memory has changed."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    async def call(self, method, body, type_, *, timeout=None, withdraw=False):  # type: ignore[no-untyped-def]
        when = ""
        if method == "step_to":
            when, self.when = self.when, ""
        if when == "before":
            self.engine = None
        answer = await super().call(method, body, type_, timeout=timeout)
        if when == "behind":
            self.engine = None
            self._running()
        return answer


@pytest.mark.parametrize("when", ["before", "behind"])
@on_fake_clock
async def test_an_engine_that_dies_within_a_step_is_followed_by_one_that_goes_on(
    small_run: SmallRun, when: str
) -> None:
    coordinator = small_run.coordinator
    engine = Dying(when)
    async with small_run.working(engine=engine) as node:
        await until(lambda: node.daemon.engine.current)
        await coordinator.publish(1)
        await until(lambda: node.holds(1))
        await until(lambda: node.daemon.engine.deaths == 1)
        assert engine.log.count("step_to") <= 1, "the process after it loads the version that the folder has"
        assert node.daemon.follower.refused == []
        before = accepted(node)
        await until(lambda: accepted(node) >= before + 2)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
async def test_a_node_killed_while_its_folder_is_ahead_starts_at_the_version_of_the_folder(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    key, engine = generate_key(), InProcessEngine(seconds=30.0)
    async with small_run.serving():
        node = small_run.node(key=key, engine=engine)
        async with working(node):
            await until(lambda: coordinator.leases)
            await coordinator.publish(1)
            await until(lambda: node.daemon.follower._weights.root() == coordinator.snapshots[1].root)
    (own,) = node.daemon.fleet.engines
    assert own.current is not None
    assert own.current.version == 0
    again = small_run.node(key=key)
    await again.daemon.follower.resume()
    assert again.daemon.engine.current.version == 1
    again.daemon.close()


@on_fake_clock
async def test_a_node_that_missed_more_than_the_edges_span_fetches_full_weights(
    small_run: SmallRun, tmp_path: Path
) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key)
        async with working(node):
            await until(lambda: node.daemon.engine.current)
        coordinator.snapshots.clear()
        coordinator.edges.clear()
        await coordinator.publish(5, 3)
        for version in (6, 7):
            await coordinator.publish(version)
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: again.holds(7))
            assert not {"step_by", "step_to"} & set(again.engine.log)
            before = accepted(again)
            await until(lambda: accepted(again) >= before + 2)
        folders = sorted(path.name for path in (tmp_path / "node").rglob("weights/*"))
        assert folders == ["held"]


def chain_of(folder: Path, count: int) -> tuple[list[tuple[Verified[Edge], Path]], list[Snapshot]]:
    """Return a full edge and `count` diffs after it, and the snapshots that they produce."""
    table, snapshots, chain = random_table(0), list[Snapshot](), list[tuple[Verified[Edge], Path]]()
    for version in range(count + 1):
        snapshot = write_table(folder / f"{version}.safetensors", table)
        payload = encode(snapshots[-1] if snapshots else None, snapshot, folder / f"{version}.edge")
        chain.append((_edge(payload, version), payload.path))
        snapshots.append(snapshot)
        table = nudged(table, version)
    return chain, snapshots


def _edge(payload: Payload, version: int) -> Verified[Edge]:
    edge = Edge(
        era=1, base=version - 1 if payload.base_root else None, base_root=payload.base_root, version=version,
        root=payload.root, codec=payload.codec, payload_hash=payload.hash, length=payload.length, chunk_size=1 << 14,
        chunk_root=bytes(32),
    )  # fmt: skip
    return verify_named(edge.to_bytes(), document_hash(edge.to_bytes()), Edge.from_bytes)


def test_new_weights_replace_the_old_ones_only_by_swap_in(tmp_path: Path) -> None:
    chain, snapshots = chain_of(tmp_path, 2)
    weights = LocalWeights(tmp_path / "weights", quota=1 << 20)
    assert weights.root() is None
    weights.make(chain[:1])
    weights.swap_in()
    assert weights.root() == snapshots[0].root
    weights.make(chain)
    assert Rolling(weights.path).root == snapshots[0].root
    weights.swap_in()
    assert weights.root() == snapshots[2].root
    assert Snapshot(weights.path / "snapshot.safetensors").root == snapshots[2].root
    assert weights.room() <= (1 << 20) - snapshots[2].nbytes


@pytest.mark.slow
def test_a_replacement_or_a_drop_that_is_cut_anywhere_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    chain, snapshots = chain_of(tmp_path, 3)
    with quick_folder() as folder:
        weights = LocalWeights(folder / "weights", quota=1 << 20)

        def life() -> Iterator[set[bytes | None]]:
            yield {weights.root()}
            for steps in (chain[:2], chain[:1], chain):
                weights.make(steps)
                weights.swap_in()
                yield {weights.root()}
            weights.drop()
            yield {None, snapshots[3].root}

        for cut in cuts(life(), folder):
            reopened = LocalWeights(folder / "weights", quota=1 << 20)
            assert reopened.root() in cut.before | cut.after, cut.where
            if (root := reopened.root()) is not None:
                assert Snapshot(Rolling(reopened.path).path).root == root, cut.where
            assert {path.name for path in (folder / "weights").iterdir()} <= {"held"}, cut.where
            reopened.make(chain)
            reopened.swap_in()
            assert reopened.root() == snapshots[3].root, cut.where


def test_an_invalid_chain_leaves_the_weights_unchanged(tmp_path: Path) -> None:
    chain, snapshots = chain_of(tmp_path, 2)
    weights = LocalWeights(tmp_path / "weights", quota=1 << 20)
    weights.make(chain[:1])
    weights.swap_in()
    lies = {
        "too large": (chain, 100),
        "a link missing": ([chain[0], chain[2]], 1 << 20),
        "another payload": ([chain[0], (chain[1][0], chain[2][1])], 1 << 20),
    }
    for steps, quota in lies.values():
        with pytest.raises(InvalidChain, match="signed edge"):
            LocalWeights(tmp_path / "weights", quota=quota).make(steps)
        assert LocalWeights(tmp_path / "weights", quota=1 << 20).root() == snapshots[0].root


def test_a_damaged_folder_of_weights_is_removed(tmp_path: Path) -> None:
    chain, _ = chain_of(tmp_path, 1)
    weights = LocalWeights(tmp_path / "weights", quota=1 << 20)
    weights.make(chain)
    weights.swap_in()
    (journal,) = (weights.path / "undo").iterdir()
    journal.write_bytes(journal.read_bytes()[:-1])
    assert weights.root() is None
    assert not weights.path.exists()
