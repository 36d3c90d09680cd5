"""Our peer with js-libp2p: tests/interop/js/peer.mjs, which was written from docs/protocol. `make interop` installs its
packages and runs this; `INTEROP_JS` names another folder with them."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from echo2._libp2p.peer.id import ID
from echo2._libp2p.peer.peerstore import PeerStoreError
from echo2.p2p.discovery import peer_records
from echo2.p2p.envelope import seal, verify_envelope
from echo2.p2p.errors import Declined, Malformed
from echo2.p2p.identity import generate_key, public_bytes, public_key
from echo2.p2p.libp2p.yamux import BoundedYamux
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.requests import Hello, Request, Response, Welcome
from echo2.protocol.versions import HeadResponse
from tests.support import stock_peers
from tests.support.interop_peers import BOTH_WAYS, CHANNEL, RUN, TOPIC, Ours, on_trio, ours, ping, sealed_head
from tests.support.paths import ROOT
from tests.support.peers import payload_file

HERE = ROOT / "tests/interop/js"
PACKAGES = Path(os.environ.get("INTEROP_JS") or ROOT / ".interop") / "node_modules"


def missing() -> str | None:
    """Return why these tests cannot run here; None: they can."""
    node_path = shutil.which("node")
    if node_path is None:
        return "node is not installed (20 or newer is needed)"
    version = subprocess.run([node_path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < 20:
        return f"node {version} is too old: 20 or newer is needed"
    if not (PACKAGES / "libp2p").is_dir():
        return f"js-libp2p is not installed in {PACKAGES}: run make interop"
    return None


WHY_NOT = missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


class JsPeer:
    """A js-libp2p process: commands, answers and events."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._answers: dict[int, dict[str, object]] = {}
        self._number = 0
        self.events: list[dict[str, object]] = []

    async def listen(self) -> None:
        """Read the process's answers and events until it ends."""
        rest = b""
        assert self._process.stdout is not None
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for event in map(json.loads, lines):
                if "id" in event:
                    self._answers[event["id"]] = event
                else:
                    self.events.append(event)

    async def obey(self, what: str, **arguments: object) -> object:
        """Send a command and return its result. Raises `RuntimeError` with the process's error."""
        self._number += 1
        number = self._number
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps({"id": number, "do": what, **arguments}).encode() + b"\n")
        await stock_peers.until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    async def event(self, name: str, **wanted: object) -> dict[str, object]:
        """Wait for the first event with this name and these values."""

        def events_named() -> list[dict[str, object]]:
            return [event for event in self.events if event["event"] == name and wanted.items() <= event.items()]

        await stock_peers.until(lambda: bool(events_named()))
        return events_named()[0]


@asynccontextmanager
async def met(dialler: str, folder: Path) -> AsyncIterator[tuple[Ours, JsPeer, str]]:
    """Run both peers, connected; yield also the peer id of the other. `dialler`: "ours" or "stock"."""
    shutil.copy(HERE / "peer.mjs", folder)
    (folder / "node_modules").symlink_to(PACKAGES)
    one = ours()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.peer.run)
        await one.peer.ready()
        process = await trio.lowlevel.open_process(
            ["node", "peer.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            other = JsPeer(process)
            nursery.start_soon(other.listen)
            ready = await other.event("ready")
            if dialler == "ours":
                await one.peer.dial(ready["addresses"])  # type: ignore[arg-type]
            else:
                assert await other.obey("dial", address=(await one.peer.addresses())[0]) == one.peer.peer_id
            await other.event("identified", peer=one.peer.peer_id)
            await stock_peers.until(lambda: ready["peer"] in one.transport.peers())
            yield one, other, str(ready["peer"])
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdin.aclose()
                await process.stdout.aclose()
        nursery.cancel_scope.cancel()


@BOTH_WAYS
@on_trio
async def test_a_js_peer_speaks_yamux_with_us_and_both_ping(dialler: str, tmp_path: Path) -> None:
    async with met(dialler, tmp_path) as (one, other, name):
        (connection,) = one.transport.connections.open
        assert type(connection.muxed_conn) is BoundedYamux
        assert await other.obey("muxer", peer=one.peer.peer_id) == ["/yamux/1.0.0"]
        assert isinstance(await other.obey("ping", peer=one.peer.peer_id), int)
        assert await ping(one, name) == 2


@BOTH_WAYS
@on_trio
async def test_each_side_learns_the_protocols_of_the_other(dialler: str, tmp_path: Path) -> None:
    async with met(dialler, tmp_path) as (one, other, name):
        identified = await other.event("identified", peer=one.peer.peer_id)
        assert {stock_peers.RPC, stock_peers.CHUNKS} <= set(identified["protocols"])  # type: ignore[call-overload]
        await stock_peers.until(lambda: {stock_peers.RPC, stock_peers.CHUNKS} <= known(one, name))


def known(one: Ours, peer: str) -> set[str]:
    """Return the protocols that our side has learnt by its own identify: js-libp2p answers one request at a time."""
    try:
        return set(one.transport.host.get_peerstore().get_protocols(ID.from_string(peer)))
    except PeerStoreError:
        return set()


@BOTH_WAYS
@on_trio
async def test_requests_are_answered_in_both_directions(dialler: str, tmp_path: Path) -> None:
    async with met(dialler, tmp_path) as (one, other, name):
        result = await other.obey("ask", peer=one.peer.peer_id, method="head", request="80")
        answer = decode(bytes.fromhex(result["answer"]), HeadResponse)  # type: ignore[index]
        assert answer.head == sealed_head(7)
        assert await one.peer.request(name, "reverse", b"abc", timeout=60) == b"cba"
        assert await one.peer.request(name, "reverse", bytes(1 << 20), timeout=60) == bytes(1 << 20)
        assert await one.peer.request(name, "slow", b"x", timeout=60) == b"x"  # signs of life meanwhile


@on_trio
async def test_refusals_are_understood_in_both_directions(tmp_path: Path) -> None:
    async with met("stock", tmp_path) as (one, other, name):
        for method, request, status in (("head", "00" * 1025, 1), ("nonsense", "", 2)):
            result = await other.obey("ask", peer=one.peer.peer_id, method=method, request=request)
            assert result["status"] == status  # type: ignore[index]
        with pytest.raises(Declined, match="no such method"):
            await one.peer.request(name, "nonsense", b"", timeout=60)
        with pytest.raises(Malformed, match="the limit is 16"):
            await one.peer.request(name, "slow", bytes(17), timeout=60)


@on_trio
async def test_a_request_sealed_by_a_js_node_is_accepted(tmp_path: Path) -> None:
    async def answer(peer: str, request: bytes) -> bytes:
        asked = decode(verify_envelope(request, "request", RUN, {public_key(peer)}), Request)
        assert (asked.recipient, asked.method) == (public_bytes(CHANNEL), "hello")
        now, greeting = int(time.time() * 1000), decode(asked.body, Hello)
        assert greeting.name == "js"
        assert peer_records.verify(greeting.record, RUN, now).addresses[0].endswith(f"/p2p/{peer}")
        welcome = Welcome(roots=[b"root"], runspec=b"", head=None, peers=[], now=now)
        return encode(Response(body=encode(welcome)))

    async with met("stock", tmp_path) as (one, other, _):
        one.peer.serve("hello", answer, limit=64 << 10)
        recipient = public_bytes(CHANNEL).hex()
        result = await other.obey("hello", peer=one.peer.peer_id, run=RUN.hex(), recipient=recipient)
        assert result["now"] > 0  # type: ignore[index]


@BOTH_WAYS
@on_trio
async def test_a_head_is_gossiped_in_both_directions_and_a_forged_one_is_refused(dialler: str, tmp_path: Path) -> None:
    async with met(dialler, tmp_path) as (one, other, _):
        keys = [public_bytes(CHANNEL).hex()]
        await other.obey("subscribe", topic=TOPIC, run=RUN.hex(), keys=keys)
        await one.peer.publish(TOPIC, sealed_head(8))
        assert (await other.event("head", version=8))["from"] == one.peer.peer_id
        await one.peer.publish(TOPIC, seal("head", RUN, b"\x80", generate_key()))
        assert (await other.event("refused"))["why"] == "not signed by whom it must be"
        await other.obey("push", topic=TOPIC, data=sealed_head(9).hex())
        assert [head.version for head in one.heard] == [9]


@BOTH_WAYS
@on_trio
async def test_payloads_are_fetched_and_verified_in_both_directions(dialler: str, tmp_path: Path) -> None:
    async with met(dialler, tmp_path) as (one, other, _):
        mine, theirs = payload_file(tmp_path / "mine", 3_000_000), payload_file(tmp_path / "theirs", 1_000_000, seed=1)
        await one.peer.share(mine, tmp_path / "mine")
        target = tmp_path / "by js"
        got = await other.obey("fetch", peer=one.peer.peer_id, manifest=plain(mine), path=str(target))
        assert got == -(-mine.length // mine.chunk_size)
        assert target.read_bytes() == (tmp_path / "mine").read_bytes()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.peer.fetch, theirs, tmp_path / "by us")  # asks before the other has it
            await other.obey("hold", manifest=plain(theirs), path=str(tmp_path / "theirs"))
        assert (tmp_path / "by us").read_bytes() == (tmp_path / "theirs").read_bytes()


@on_trio
async def test_a_js_peer_refuses_a_chunk_of_another_payload(tmp_path: Path) -> None:
    async with met("stock", tmp_path) as (one, other, _):
        mine = payload_file(tmp_path / "mine", 300_000)
        await one.peer.share(mine, tmp_path / "mine")
        other_root = {**plain(mine), "chunk_root": bytes(32).hex()}
        with pytest.raises(RuntimeError, match="a bad chunk"):
            await other.obey("fetch", peer=one.peer.peer_id, manifest=other_root, path=str(tmp_path / "by js"))


def plain(manifest: Manifest) -> dict[str, object]:
    return {
        "hash": manifest.hash.hex(),
        "length": manifest.length,
        "chunk_size": manifest.chunk_size,
        "chunk_root": manifest.chunk_root.hex(),
    }
