"""A folder of weights on a host of a scorer, made from payloads that come over HTTPS as they come to a node.

    model/           config.json, tokenizer.json, a frozen base
    held             the weights (weights/journaled.py), which the engine steps; made: their replacement
    payloads/HASH    files on their way

Rules
1. Each chunk is verified by the Merkle root that the coordinator names, from a signed Edge, and the weights by their
   content root. So neither a line nor a host in between can change a byte unseen.
2. A fetch without a new byte for `SILENCE_SECONDS` is given up: `PayloadAway`.
3. One process at a time has the folder. A kill at any moment leaves complete weights in `held`.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio.to_thread

from echo2.coordinator.ray_scorers.messages import PayloadSource, PayloadStep
from echo2.p2p.errors import P2PError
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.payload_manifest import Manifest
from echo2.protocol.authority import Asset
from echo2.runtime.lock import AlreadyLocked, Lock, lock_folder
from echo2.weights.journaled import Rolling, finish_replace, remove, replace_folder
from echo2.weights.shown_ranges import shown_of

LOOK_SECONDS: Final = 10.0
"""Seconds between two looks at a fetch, at each of which its caller hears of new bytes."""
SILENCE_SECONDS: Final = 60.0


class PayloadAway(Exception):
    """The coordinator cannot be reached, or sends no payload."""


class FetchedFolder:
    """The folder. `sign`: called while a fetch makes progress."""

    def __init__(self, folder: Path, sign: Callable[[], None]) -> None:
        """Raises `PayloadAway` where another process has it."""
        self.path, self._sign = folder, sign
        self.model, self.weights = folder / "model", folder / "held"
        self._fetching = folder / "payloads"
        for path in (self.model, self._fetching):
            path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock: Lock = lock_folder(folder)
        except AlreadyLocked as error:
            raise PayloadAway(f"another scorer of this host uses {folder}") from error

    async def prepare(self, source: PayloadSource, model: Sequence[Asset], chain: Sequence[PayloadStep]) -> bool:
        """Fetch the model's files, and make `held` from `chain` where there is one; tell whether there are weights.
        Raises `PayloadAway`, `WeightsError`, `DiskFull`."""
        missing = [asset for asset in model if not (self.model / asset.name).exists()]
        if missing or chain:
            async with _connection(source) as client:
                for asset in missing:
                    await self._fetch(client, asset.manifest, self.model / Path(asset.name).name)
                for step in chain:
                    await self._fetch(client, step.manifest, self._file(step))
        if chain:
            await anyio.to_thread.run_sync(self._make, chain)
        finish_replace(self.weights)
        return (self.weights / "origin").exists()

    async def fetch_step(self, source: PayloadSource, step: PayloadStep) -> Path:
        """Fetch a payload; return its file. Raises `PayloadAway`."""
        async with _connection(source) as client:
            await self._fetch(client, step.manifest, self._file(step))
        return self._file(step)

    def drop_payloads(self) -> None:
        """Delete the payloads, which are not needed any more."""
        shutil.rmtree(self._fetching)
        self._fetching.mkdir()

    async def show(self, lease: bytes) -> bytes:
        """Return the hash that answers a lease (weights/shown_ranges.py)."""
        return await anyio.to_thread.run_sync(shown_of, self.weights, lease)

    def forget(self) -> None:
        """Delete the weights."""
        remove(self.weights)

    def _file(self, step: PayloadStep) -> Path:
        return self._fetching / step.manifest.hash.hex()

    def _make(self, chain: Sequence[PayloadStep]) -> None:
        made_anew = self.path / "made"
        remove(made_anew)
        unpacked = Rolling.unpack(made_anew, self._file(chain[0]), chain[0].root)
        for step in chain[1:]:
            unpacked.apply(self._file(step), step.root)
        replace_folder(made_anew, self.weights)
        self.drop_payloads()

    async def _fetch(self, client: HttpsClient, manifest: Manifest, path: Path) -> None:
        """Fetch a file (rules 1 and 2)."""
        task, before = asyncio.create_task(client.fetch(manifest, path)), -1
        silent = 0.0
        try:
            while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
                arrived = client.received.total()
                silent = 0.0 if arrived != before else silent + LOOK_SECONDS
                before = arrived
                if silent >= SILENCE_SECONDS:
                    raise PayloadAway(f"no byte of payload {manifest.hash.hex()[:16]} in {silent:g} s")
                if silent == 0.0:
                    self._sign()
            await task
        except P2PError as error:
            raise PayloadAway(str(error)) from error
        finally:
            task.cancel()


@asynccontextmanager
async def _connection(source: PayloadSource) -> AsyncIterator[HttpsClient]:
    """Yield a client that has reached the coordinator. Raises `PayloadAway`."""
    client = HttpsClient("scorer", source.pin)
    task = asyncio.create_task(client.run())
    try:
        await client.ready()
        try:
            await client.dial(source.addresses)
        except P2PError as error:
            raise PayloadAway(f"the coordinator is not reached over HTTPS: {error}") from error
        yield client
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
