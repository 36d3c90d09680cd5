"""Payloads of a peer that lies, or that counts false chunks: this module stands in for the parts `payload` and
`partial` (runtime/stand_ins.py)."""

from typing import Final

from echo2.p2p.errors import BadChunk
from echo2.p2p.swarm import payload_file
from echo2.p2p.swarm.manifest import chunk_span

MODULE: Final = "benchmarks.broadcast.watched_payloads"


class Eye:
    """Counts false chunks, those sent and those refused on arrival. `liar`: whether this peer flips a bit of each chunk
    that it sends. `truth`: the payload itself; None: not known yet."""

    def __init__(self) -> None:
        self.liar = False
        self.truth: bytes | None = None
        self.bad_sent = self.bad_received = 0


EYE: Final = Eye()
"""The one of this process."""


class _Watched(payload_file.PayloadFile):
    def read(self, index: int, *, block: bool = True) -> tuple[bytes, list[bytes]] | None:
        """See `PayloadFile`."""
        chunk = super().read(index, block=block)
        if chunk is None:
            return None
        data, proof = chunk
        if EYE.liar:
            return bytes([data[0] ^ 1]) + data[1:], proof
        if EYE.truth is not None:
            offset, length = chunk_span(self.manifest, index)
            EYE.bad_sent += EYE.truth[offset : offset + length] != data
        return chunk


class PayloadFile(_Watched):
    """A payload that is shared."""


class PartialPayload(_Watched, payload_file.PartialPayload):
    """A payload that is fetched."""

    def prove(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> None:
        """See `PartialPayload`."""
        try:
            super().prove(index, data, proof)
        except BadChunk:
            EYE.bad_received += 1
            raise
