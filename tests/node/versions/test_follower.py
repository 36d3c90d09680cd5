"""Following versions: lost gossip, absence, damage, documents and payloads on disk."""

import re
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.node.versions import follower
from echo2.node.versions.payload_fetcher import PayloadFetcher
from echo2.p2p.envelope import Verified
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Submission
from echo2.protocol.requests import DocumentsRequest
from echo2.protocol.versions import Head
from tests.support.clock import on_fake_clock, run_fake
from tests.support.fake_coordinator import (
    HEAD_LIFE,
    FakeCoordinator,
    InProcessEngine,
    make_node,
    until,
)
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_a_node_to_which_gossip_brings_nothing_asks_for_the_head_every_half_of_its_life(
    small_run: SmallRun,
) -> None:
    """The node is paused, so that no refused lease makes it ask. At commit 439044d it stays at the first Head."""

    async def nothing(topic: str, data: bytes) -> None:
        """Lose a message."""

    coordinator = small_run.coordinator
    async with small_run.serving() as peer:
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.engine.current)
            node.daemon.run_state.pause(None)
            peer.publish = nothing  # type: ignore[method-assign]
            for version in (1, 2):
                await coordinator.publish(version)
                await anyio.sleep(HEAD_LIFE / 2000 + 1)
                assert node.daemon.follower.heads.newest.version == version


@on_fake_clock
async def test_the_log_has_one_line_per_some_minutes_on_loaded_versions(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a node that ran for days had a line per version at the default level. The minutes are seconds here."""
    monkeypatch.setattr(follower, "VERSIONS_LOG_SECONDS", 2.0)
    coordinator = small_run.coordinator
    async with small_run.serving():
        with capture_logs() as logs:
            node = small_run.node()
            async with working(node):
                await until(lambda: node.daemon.engine.current)
                began = anyio.current_time()
                for version in range(1, 13):
                    await coordinator.publish(version)
                    await until(lambda: node.daemon.engine.current.version == version)  # noqa: B023
                    await anyio.sleep(0.5)
                seconds = anyio.current_time() - began
    lines = {name: [line for line in logs if line["event"] == f"{name} held"] for name in ("version", "versions")}
    assert [(line["log_level"], line["version"]) for line in lines["version"]] == [("debug", at) for at in range(13)]
    (size,) = [line["event"] for line in logs if line["event"].startswith("the model has ")]
    words = r"the model has [\d.]+ million parameters, [\d.]+ MB of weights, which .*; [\d.]+ MB are fetched"
    assert re.fullmatch(words, size)
    said = lines["versions"]
    assert {line["log_level"] for line in said} == {"info"}
    assert (said[0]["versions"], said[0]["version"]) == (1, 0)
    assert 3 <= len(said) <= 1 + seconds / 2
    assert sum(line["versions"] for line in said) == said[-1]["version"] + 1


@on_fake_clock
async def test_a_node_passes_on_only_heads_that_are_newer_than_those_it_has(small_run: SmallRun) -> None:
    """A Head whose check takes longer than that of a newer one is not passed on after it."""
    coordinator = small_run.coordinator
    async with small_run.serving():
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.engine.current)
            follower, (older, newer) = node.daemon.follower, [coordinator.sealed_head(0) for _ in range(2)]
            verify = follower.heads._verify_head

            async def slowly(peer: str, sealed: bytes) -> Verified[Head]:
                verified = await verify(peer, sealed)
                await anyio.sleep(1 if sealed == older else 0)
                return verified

            follower.heads._verify_head = slowly  # type: ignore[method-assign]
            async with anyio.create_task_group() as tasks:
                passed_on = dict[bytes, bool]()
                for sealed in (older, newer):

                    async def hear(sealed: bytes = sealed) -> None:
                        passed_on[sealed] = await follower.heads.hear("stranger", sealed)

                    tasks.start_soon(hear)
            assert passed_on == {older: False, newer: True}
            assert not await follower.heads.hear("stranger", newer)
            assert not await follower.heads.hear("stranger", older)


@pytest.mark.slow
def test_a_node_asks_for_each_document_once_however_long_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index names the full edge and its anchor throughout the run. Here a node keeps 3 documents of a kind and no
    payload; after 20 versions it has requested no document twice."""
    monkeypatch.setattr("echo2.node.versions.follower.DOCUMENTS_KEPT", 3)
    asked: list[bytes] = []

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        tidy = PayloadFetcher.tidy
        monkeypatch.setattr(
            PayloadFetcher, "tidy", lambda payloads, era, version, quota: tidy(payloads, era, version, 0)
        )
        answer = coordinator.answer_documents

        async def counted(peer: str, data: bytes) -> bytes:
            asked.extend(decode(data, DocumentsRequest).hashes)
            return await answer(peer, data)

        coordinator.answer_documents = counted  # type: ignore[method-assign]
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                for version in range(20):
                    await coordinator.publish(version)
                    await until(lambda: node.daemon.engine.current and node.daemon.engine.current.version == version)  # noqa: B023

    run_fake(main)
    twice = len(asked) - len(set(asked))
    assert twice == 0, f"{twice} of {len(asked)} documents were asked for again"


@on_fake_clock
@pytest.mark.slow
async def test_a_node_keeps_no_payload_that_no_index_can_name_however_large_its_disk(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here an index names the first edge and the newest 4, and a node keeps 6. After 20 versions commit 439044d keeps
    21 payloads, and reads the documents of all of them per version."""
    monkeypatch.setattr("echo2.node.versions.follower.DOCUMENTS_KEPT", 6)
    coordinator = small_run.coordinator
    async with small_run.serving(published=False):
        node = small_run.node()
        async with working(node):
            for version in range(21):
                del coordinator.edges[1:-3]
                await coordinator.publish(version)
                await until(lambda: node.daemon.engine.current and node.daemon.engine.current.version == version)  # noqa: B023
            # The newest version's tidying may still be under way; that of the one before is done.
            payloads = {file.hash for file in node.daemon.context.store.payloads()}
            assert len(payloads) <= 8
            assert {edge.payload_hash for _, edge, _ in coordinator.edges} <= payloads
            assert len(node.daemon.context.store.documents("edge")) <= 8


@on_fake_clock
@pytest.mark.slow
async def test_weights_pass_from_node_to_node(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving():
        one = small_run.node("one")
        two = small_run.node("two")
        async with working(one, two):
            await until(lambda: all(n.daemon.engine.current for n in (one, two)))
            await until(lambda: len(small_run.network.transports[one.peer_id].peers()) == 2)
            small_run.network.partition([coordinator.peer_id], [two.peer_id])
            await coordinator.publish(1)
            await until(lambda: two.holds(1), 200)
            assert one.daemon.engine.current.version == 1


@on_fake_clock
async def test_a_node_that_was_away_catches_up_by_a_chain_of_edges(small_run: SmallRun, tmp_path: Path) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key)
        async with working(node):
            await until(lambda: node.daemon.engine.current)
        for version in range(1, 9):
            await coordinator.publish(version)
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: again.holds(8))
            assert again.engine.log.count("step_to") == 1, "the folder made the eight steps before"
            assert "step_by" not in again.engine.log
            await until(lambda: accepted(again) >= 3)
        assert len(list((tmp_path / "node").rglob("snapshot*.safetensors"))) == 1


@on_fake_clock
async def test_a_snapshot_damaged_on_disk_is_fetched_again(small_run: SmallRun, tmp_path: Path) -> None:
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key)
        async with working(node):
            await until(lambda: node.daemon.engine.current)
        (snapshot,) = (tmp_path / "node").rglob("held/snapshot.safetensors")
        data = bytearray(snapshot.read_bytes())
        data[-1] ^= 1
        snapshot.write_bytes(data)
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: accepted(again) >= 2)
            assert any("damaged" in s for s in again.daemon.follower.refused)
            assert again.daemon.outbox.counts().get("refused", 0) == 0


@on_fake_clock
async def test_a_version_loaded_while_the_next_is_asked_for_costs_no_second_request(small_run: SmallRun) -> None:
    """The documents of version 2 are on their way when the engine becomes free for version 1."""
    coordinator, asked = small_run.coordinator, list[bytes]()
    answer = coordinator.answer_documents

    async def slow(peer: str, data: bytes) -> bytes:
        asked.extend(decode(data, DocumentsRequest).hashes)
        await anyio.sleep(2.0)
        return await answer(peer, data)

    coordinator.answer_documents = slow  # type: ignore[method-assign]
    async with small_run.serving():
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.engine.current)
            engine = node.daemon.engine
            async with engine.shared():
                await coordinator.publish(1)
                await until(lambda: engine.wanted)
                before = len(asked)
                await coordinator.publish(2)
                await until(lambda: len(asked) > before)
            await until(lambda: node.holds(2))
            assert list(node.daemon.context.store.folder.glob("incoming/*")) == []
    assert len(asked) == len(set(asked))


@on_fake_clock
async def test_a_version_is_on_disk_before_the_groups_under_way_have_ended(small_run: SmallRun) -> None:
    """Once they have, the engine changes its memory alone; the groups are of the version under which they began."""
    coordinator, engine = small_run.coordinator, InProcessEngine(seconds=30.0, places=4)
    async with small_run.working(engine=engine) as node:
        await until(lambda: len(coordinator.leases) >= 4)
        (own,), began = node.daemon.fleet.engines, set(coordinator.leases)
        await coordinator.publish(1)
        await anyio.sleep(5)
        assert node.daemon.follower._weights.root() == coordinator.snapshots[1].root
        assert own.current is not None
        assert own.current.version == 0
        assert set(coordinator.leases) == began, "no lease is asked for under a version that the folder has left"
        await until(lambda: own.current is not None and own.current.version == 1)
        assert (engine.log.count("step_to"), engine.log.count("step_by")) == (1, 0)
        await until(lambda: began <= set(coordinator.decided))
        assert {decode(coordinator.submitted[lease], Submission).version for lease in began} == {0}
        assert "refused" not in node.daemon.outbox.counts()
        assert coordinator.acknowledged[-1][1].version == 1


@on_fake_clock
async def test_versions_that_come_while_groups_are_finished_are_passed_over(small_run: SmallRun) -> None:
    """The groups under way end after version 3 was heard: versions 1 to 3 are applied together, with the engine emptied
    once."""
    coordinator = small_run.coordinator
    async with small_run.serving():
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.engine.current)
            engine, loaded = node.daemon.engine, list[int]()
            applied = node.daemon.follower._acknowledger.on_version_load
            node.daemon.follower._acknowledger.on_version_load = lambda era, version, payloads: (  # type: ignore[method-assign]
                loaded.append(version), applied(era, version, payloads),
            )[1]  # fmt: skip
            async with engine.shared():
                for version in (1, 2, 3):
                    await coordinator.publish(version)
                    await until(lambda: node.daemon.follower.heads.newest.version == version)  # noqa: B023
                await until(lambda: engine.wanted)
                await anyio.sleep(5.0)
                assert engine.current is not None
                assert engine.current.version == 0
            await until(lambda: node.holds(3))
            assert loaded == [3]
            done = accepted(node)
            await coordinator.publish(4)
            await until(lambda: node.holds(4))
            await until(lambda: accepted(node) >= done + 3)
