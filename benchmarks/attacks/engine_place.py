"""A place over real connections whose nodes generate with the product's engine on the run's own model.

Each version's snapshot is linked into a folder of this process as it appears: the coordinator may drop it before a
lease under it is worked on. A version whose snapshot was dropped before it was linked is passed over.
"""

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from benchmarks.attacks.asking import stand
from benchmarks.attacks.attack_client import ENGINE, Client, Target
from benchmarks.attacks.flood_keys import Key
from benchmarks.attacks.groups import submission_of
from benchmarks.attacks.light_node import Terms
from benchmarks.attacks.wire_place import WirePlace
from benchmarks.plays import direct
from echo2.engines.engine import Job, Sample
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.p2p.identity import generate_key
from echo2.protocol.leases import Lease, Submission
from echo2.tasks import registry, tokenizer
from echo2.tasks.task import Episode, sampled_mask
from echo2.weights.store import snapshot_name


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a process. `addresses`, `https`: of the coordinator. `page`: port of its page. `database`: its
    run.sqlite. `invite`: its text. `model`, `snapshots`: folders. `own`: a folder of this process. `eos`,
    `other_ends`: ends of a turn. `temperature`: thousandths. `market`: whether the run pays by one. `nodes`: seconds
    per group of each honest node; none: this process attacks, at priority `niceness`."""

    terms: Terms
    addresses: list[str]
    page: int
    database: str
    invite: str
    model: str
    snapshots: str
    own: str
    eos: int
    other_ends: list[int] = []
    temperature: int = PLAIN_TEMPERATURE
    nodes: list[float] = []
    market: bool = False
    niceness: int = 0
    https: list[str] = []


class EnginePlace(WirePlace):
    """The place of honest nodes or attackers that share one engine."""

    def __init__(self, order: Order, tasks: TaskGroup, base: int = 0) -> None:
        super().__init__(order.terms, order.addresses, order.database, tasks, base)
        self.order = order
        self.https = order.https
        self.target = Target(order.invite, Path(order.model), Path(order.own))
        self._loaded = b""
        self._computing = anyio.Lock()

    @cached_property
    def engine(self) -> Any:
        from echo2.engines.transformers.engine import TransformersEngine

        return TransformersEngine("cpu", "float32")

    def look(self) -> None:
        """Learn the newest version, and keep the snapshots that are there."""
        for path in Path(self.order.snapshots).glob("*.safetensors"):
            with suppress(OSError):  # it is here already, or was dropped meanwhile
                os.link(path, Path(self.order.own) / path.name)
        super().look()

    def holds(self, era: int, version: int, root: bytes) -> bool:
        """Keep the snapshot of a version; tell whether it is here."""
        name = snapshot_name(version, root)
        with suppress(OSError):
            os.link(Path(self.order.snapshots) / name, Path(self.order.own) / name)
        return (Path(self.order.own) / name).exists()

    async def group(self, lease: Lease) -> Submission:
        """See `AttackPlace`."""
        return submission_of(lease, await self.samples(lease))

    async def samples(self, lease: Lease) -> list[Sample]:
        """Generate the group of a lease, as its owner should."""
        async with self._computing:
            return await anyio.to_thread.run_sync(self._generate, lease)

    def load(self, lease: Lease) -> None:
        """Load the version of a lease."""
        if self._loaded != lease.root:
            name = snapshot_name(lease.version, lease.root)
            self.engine.load(self.target.model, self.target.snapshots / name)
            self._loaded = lease.root

    def spoil(self) -> None:
        """Have the weights loaded again before they are next used."""
        self._loaded = b""

    def job(self, lease: Lease) -> Job:
        """Return the engine's job for a lease."""
        return Job(
            prompt=lease.prompt, seeds=lease.seeds, limit=lease.limit, eos=self.order.eos,
            other_ends=tuple(self.order.other_ends), task=lease.task, task_version=lease.task_version,
            split="train", index=lease.index, temperature=self.order.temperature,
        )  # fmt: skip

    async def prepared(self, key: Key) -> None:
        """See `AttackPlace`."""
        if self.order.market:
            await stand(key)

    def reward(self, lease: Lease, sample: Sample) -> float:
        """Return the reward of a sample of a task of one turn, as its owner can compute it."""
        assert all(sampled_mask(sample.turns)), "a task of one turn"
        episode: Episode = registry.get(lease.task, lease.task_version).episode("train", lease.index, self.text)
        episode.reply(sample.tokens)
        return episode.score().reward

    async def client(self, party: str) -> Client:
        """Connect and introduce a client with a new key, from a subnet of its own."""
        connection = await self.connect(party)
        client = Client(self.target, connection, generate_key(), connection.to, ENGINE)
        await client.hello()
        return client

    @cached_property
    def text(self) -> tokenizer.FileTokenizer:
        """The model's tokenizer."""
        return tokenizer.load(self.target.model / "tokenizer.json", self.order.eos, *self.order.other_ends)

    def _generate(self, lease: Lease) -> list[Sample]:
        self.load(lease)
        return direct.generate(self.engine, self.job(lease))
