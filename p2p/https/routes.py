"""The paths, frames and bounds of HTTPS between a node and the coordinator (docs/protocol/https.md).

    GET  /echo2/1/peer                          the coordinator's peer id, as text
    POST /echo2/1/rpc/METHOD                    a request; its answer. The same bytes as over /echo2/rpc/1
    GET  /echo2/1/topic/TOPIC                   the last message of the topic. If-None-Match: wait for the next one
    GET  /echo2/1/chunks/HASH/FIRST-LAST        chunks of a payload with their proofs, one frame each

A frame is a length (u32, big-endian) and a message of p2p/swarm/messages.py: `Chunk`, or `NotAvailable`.
"""

import hashlib
import re
import struct
from typing import Final

from echo2.p2p.errors import Malformed
from echo2.p2p.swarm import messages

ROOT: Final = "/echo2/1"
PEER: Final = f"{ROOT}/peer"
RPC: Final = f"{ROOT}/rpc/"
TOPIC: Final = f"{ROOT}/topic/"
CHUNKS: Final = f"{ROOT}/chunks/"
LONG_POLL_SECONDS: Final = 15.0
"""Seconds that the coordinator keeps a long poll for a topic open: shorter than the timeouts of proxies, and than
the 20 s without a byte after which a node gives a request up."""
BATCH: Final = 64
"""Most chunks per answer."""
WRITE_BYTES: Final = 64 << 10
"""Bytes per write, each within the patience for one write."""
LENGTH: Final = struct.Struct(">I")


def etag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def chunks_path(payload: bytes, first: int, last: int) -> str:
    """Return the path of chunks `first` to `last`, both included."""
    return f"{CHUNKS}{payload.hex()}/{first}-{last}"


def read_chunks_path(path: str) -> tuple[bytes, int, int]:
    """Read a path as (payload hash, first, last). Raises `Malformed`."""
    stated = re.fullmatch(r"([0-9a-fA-F]{64})/([0-9]{1,8})-([0-9]{1,8})", path.removeprefix(CHUNKS))
    if stated is None or not 0 <= int(stated[3]) - int(stated[2]) < BATCH:
        raise Malformed(f"chunks are requested as HASH/FIRST-LAST, at most {BATCH} at a time")
    return bytes.fromhex(stated[1]), int(stated[2]), int(stated[3])


def frame_message(message: messages.Chunk | messages.NotAvailable) -> bytes:
    """Return a message with its length in front."""
    content = messages.encode(message)
    return LENGTH.pack(len(content)) + content
