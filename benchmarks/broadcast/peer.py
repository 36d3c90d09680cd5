"""One peer of benchmarks.broadcast, driven by JSON lines: the product's `ThreadedPeer`, with false chunks counted.

    ADDRESS FOLDER SEED [--liar] [--uplink BYTES]   -> {peer, addresses}
    {dial: [[address ...] ...]}                     -> {connected}
    {follow: [PEER ...]}                            -> {followed}   (the parent of each stripe)
    {share: PATH}                                   -> {manifest}
    {fetch: MANIFEST, last: PEER, truth: PATH}      -> {end, by_peer}, later; other orders are carried out meanwhile
    {report: true}                                  -> {sent, bad_sent, bad_received}

`last` is the fallback, the source: the peer that is asked last for a chunk. `truth` is the payload itself: an honest
peer compares each chunk that it sends with it. `end` is monotonic time in seconds, `sent` counts bytes, `bad_sent` and
`bad_received` count false chunks. With `--liar`, a peer flips a bit of each chunk that it sends.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.broadcast.watched_payloads import EYE, MODULE
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import PayloadRates, ThreadedPeer
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm.manifest import manifest_of
from echo2.runtime.stand_ins import VARIABLE


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


async def obey(peer: ThreadedPeer, folder: Path, order: dict[str, Any]) -> None:
    """Carry out one order, and print the reply."""
    if "dial" in order:
        await asyncio.gather(*(peer.dial(addresses) for addresses in order["dial"]))
        say(connected=len(await peer.peers()))
    elif "follow" in order:
        await peer.follow(order["follow"])
        say(followed=order["follow"])
    elif "share" in order:
        path = Path(order["share"])
        manifest = manifest_of(path)
        await peer.share(manifest, path)
        say(manifest=_spelt(manifest))
    elif "fetch" in order:
        EYE.truth = await asyncio.to_thread(Path(order["truth"]).read_bytes)
        manifest = _read(order["fetch"])
        path = folder / manifest.hash.hex()
        await peer.fetch(manifest, path, fallback=order["last"])
        end = time.monotonic()
        assert await asyncio.to_thread(path.read_bytes) == EYE.truth
        say(end=end, by_peer=(await peer.traffic()).received_by_peer)
    else:
        traffic = await peer.traffic()
        say(sent=traffic.sent, bad_sent=EYE.bad_sent, bad_received=EYE.bad_received)


def _spelt(manifest: Manifest) -> list[Any]:
    return [manifest.hash.hex(), manifest.length, manifest.chunk_size, manifest.chunk_root.hex()]


def _read(spelt: list[Any]) -> Manifest:
    whole, length, size, root = spelt
    return Manifest(hash=bytes.fromhex(whole), length=length, chunk_size=size, chunk_root=bytes.fromhex(root))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--liar", action="store_true")
    parser.add_argument("--uplink", type=float)
    given = parser.parse_args()
    EYE.liar = given.liar
    os.environ[VARIABLE] = f"payload={MODULE} partial={MODULE}"
    given.folder.mkdir(parents=True, exist_ok=True)
    peer = ThreadedPeer(
        generate_key(), [f"/ip4/{given.address}/tcp/0"], seed=given.seed, rates=PayloadRates(given.uplink)
    )
    running = asyncio.create_task(peer.run())
    await peer.ready()
    say(peer=peer.peer_id, addresses=await peer.addresses())
    async with asyncio.TaskGroup() as fetching:
        while order_text := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(order_text)
            if "fetch" in order:
                fetching.create_task(obey(peer, given.folder, order))
            else:
                await obey(peer, given.folder, order)
    running.cancel()


if __name__ == "__main__":
    asyncio.run(main())
