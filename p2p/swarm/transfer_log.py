"""Record which peer sent how many bytes of a payload, and when. No I/O: `now` is a monotonic clock, in seconds."""

from dataclasses import dataclass

from echo2.p2p.network import FetchReport, PeerTransfer


@dataclass
class _Sender:
    began: float
    ended: float
    nbytes: int = 0


class TransferLog:
    """The record of one fetch, starting at `began`."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._senders: dict[str, _Sender] = {}

    def on_request(self, peer: str, now: float) -> None:
        """Note that a chunk is requested from `peer`."""
        self._senders.setdefault(peer, _Sender(now, now))

    def on_verified_chunk(self, peer: str, nbytes: int, now: float) -> None:
        """Note that a verified chunk came from `peer`."""
        sender = self._senders.setdefault(peer, _Sender(now, now))
        sender.nbytes += nbytes
        sender.ended = now

    def report(self, now: float) -> FetchReport:
        """Return the report; peers that sent no chunk are left out."""
        transfers = [
            PeerTransfer(peer=peer, nbytes=sent.nbytes, began=sent.began - self._began, ended=sent.ended - self._began)
            for peer, sent in self._senders.items()
            if sent.nbytes
        ]
        return FetchReport(seconds=now - self._began, feeds=tuple(sorted(transfers, key=lambda feed: feed.began)))
