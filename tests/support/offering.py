"""A peer in a process of its own that offers one file over libp2p: `python -m tests.support.offering FILE`.

It writes its addresses as one line of JSON, and ends with its standard input.
"""

import asyncio
import json
import sys
from pathlib import Path

from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.swarm.manifest import manifest_of


async def main(path: Path) -> None:
    """Offer the file."""
    peer = ThreadedPeer(generate_key(), ["/ip4/127.0.0.1/tcp/0"])
    running = asyncio.create_task(peer.run())
    await peer.ready()
    await peer.share(manifest_of(path), path)
    sys.stdout.write(json.dumps(await peer.addresses()) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    await asyncio.wait([running])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
