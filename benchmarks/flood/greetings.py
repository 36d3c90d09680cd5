"""Measure the cost of a hello after many keys, and the list of nodes that a newcomer gets while attackers try to fill
it."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.flood.cost import SECTIONS, Ask
from benchmarks.flood.engine import StandInScorer, honest
from benchmarks.load.bare import Bare, bare, until
from benchmarks.load.folder import make_run
from benchmarks.load.light import LightNode
from echo2.p2p.discovery.messages import PeerRecord
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.multiaddr import address_of
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.requests import Hello, Welcome

HELLOS: Final = 300


class Greeting(NamedTuple):
    """Milliseconds of CPU of a hello after few keys, and after many: medians of `HELLOS`."""

    few: float
    many: float


class Told(NamedTuple):
    """The list that a newcomer gets. `told`: number of its records; `worked`: of those, the records of nodes with
    accepted work, of which there are `here`. `of_a_subnet`: most records of attackers from one subnet."""

    told: int
    worked: int
    here: int
    of_a_subnet: int


@asynccontextmanager
async def _coordinator() -> AsyncIterator[Bare]:
    with tempfile.TemporaryDirectory(prefix="echo2-flood-") as folder:
        run = make_run(Path(folder) / "run", now=time.time_ns() // 1_000_000, **SECTIONS)
        async with bare(run, scorers=[StandInScorer(0.0)]) as coordinator:
            yield coordinator


def greeted(keys: int) -> Greeting:
    """Measure the hello of a fresh key, before and after `keys` rows were added to the table of nodes."""

    async def main() -> Greeting:
        async with _coordinator() as coordinator:
            few = await _hello(coordinator)
            database, now = coordinator.database, time.time_ns() // 1_000_000
            columns = [row[1] for row in database.all("PRAGMA table_info(nodes)")]
            values: dict[str, Any] = {
                "key": None,
                "name": "stranger",
                "software": "x",
                "engine": "stub/float32/cpu",
                "device": "none",
            }
            values |= {"addresses": b"", "first_seen": now, "last_seen": now}
            given = [name for name in columns if name in values]
            insert = f"INSERT INTO nodes ({', '.join(given)}) VALUES ({', '.join('?' * len(given))})"
            with database.transaction():
                for number in range(keys):
                    values |= {"key": os.urandom(32), "last_seen": now - number}
                    database.do(insert, tuple(values[name] for name in given))
            await asyncio.sleep(0)
            return Greeting(few, await _hello(coordinator))

    return asyncio.run(main())


async def _hello(coordinator: Bare) -> float:
    """Return the median milliseconds of CPU of the hellos of fresh keys."""
    spent = []
    for _ in range(HELLOS):
        data = LightNode(coordinator.terms()).hello()
        began = time.process_time()
        await coordinator.handlers["hello"]("stranger", data)
        spent.append(time.process_time() - began)
    return 1000 * statistics.median(spent)


def told(workers: int, strangers: int) -> Told:
    """Let `workers` nodes of as many subnets get a group accepted, then `strangers` fresh keys of 8 subnets say hello;
    return what a newcomer's list contains."""

    async def main() -> Told:
        async with _coordinator() as coordinator:
            nodes = [LightNode(coordinator.terms(40)) for _ in range(workers)]
            for number, node in enumerate(nodes):
                await _ask(coordinator, Ask(f"honest {number}", "hello", _hello_from(node, f"80.{number}.1.1")))
                answer = await _ask(coordinator, Ask(f"honest {number}", "lease", node.ask()))
                group = node.sealed("submit", encode(honest(lease_of(answer))))
                await _ask(coordinator, Ask(f"honest {number}", "submit", group))
            await until(lambda: _accepted(coordinator) == workers)
            for number in range(strangers):
                host = f"90.1.{number % 8}.{1 + number // 8 % 250}"
                await _ask(coordinator, Ask("stranger", "hello", _hello_from(LightNode(coordinator.terms()), host)))
            newcomer = _hello_from(LightNode(coordinator.terms()), "91.1.1.1")
            welcome = decode(await _ask(coordinator, Ask("newcomer", "hello", newcomer)), Welcome)
            records = [decode(decode_unverified(sealed).payload, PeerRecord) for sealed in welcome.peers]
            hosts = [address_of(record.addresses[0]).host for record in records]
            subnets = [host.rpartition(".")[0] for host in hosts if host.startswith("90.")]
            known = {peer_id(public_bytes(node.key)) for node in nodes}
            worked = sum(peer_id(decode_unverified(sealed).signatures[0].key) in known for sealed in welcome.peers)
            return Told(len(hosts), worked, workers, max(map(subnets.count, subnets), default=0))

    return asyncio.run(main())


def _hello_from(node: LightNode, host: str) -> bytes:
    terms, now, peer = node.terms, node.clock(), peer_id(public_bytes(node.key))
    address = f"/ip4/{host}/tcp/4310/p2p/{peer}"
    record = seal("peer", terms.run, encode(PeerRecord(addresses=[address], issued=now)), node.key)
    hello = Hello(
        protocols=(1, 1),
        software="echo2 flood",
        name="",
        engine=terms.engine,
        device="none",
        tasks=[TaskReference(name=terms.task, version=terms.task_version)],
        record=record,
    )
    return node.sealed("hello", encode(hello))


async def _ask(coordinator: Bare, ask: Ask) -> bytes:
    body = opened(await coordinator.handlers[ask.method](ask.peer, ask.data))
    assert isinstance(body, bytes), f"{ask.method} was refused: {body}"
    return body


def _accepted(coordinator: Bare) -> int:
    return int(coordinator.database.value("SELECT count(*) FROM verdicts WHERE verdict = 'accepted'"))
