"""Record which peer sent how many bytes of a payload, and when. No I/O: `now` is a monotonic clock, in seconds."""

import msgspec

from echo2.p2p.network import FetchReport, PeerTransfer


class TransferLog:
    """The record of one fetch, starting at `began`."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._transfers: dict[str, PeerTransfer] = {}

    def on_request(self, peer: str, now: float) -> None:
        """Note that a chunk is requested from `peer`."""
        at = now - self._began
        self._transfers.setdefault(peer, PeerTransfer(peer=peer, nbytes=0, began=at, ended=at))

    def on_verified_chunk(self, peer: str, nbytes: int, now: float) -> None:
        """Note that a verified chunk came from `peer`."""
        self.on_request(peer, now)
        before, at = self._transfers[peer], now - self._began
        self._transfers[peer] = msgspec.structs.replace(before, nbytes=before.nbytes + nbytes, ended=at)

    def report(self, now: float) -> FetchReport:
        """Return the report; peers that sent no chunk are left out."""
        feeds = sorted((one for one in self._transfers.values() if one.nbytes), key=lambda one: one.began)
        return FetchReport(seconds=now - self._began, feeds=tuple(feeds))
