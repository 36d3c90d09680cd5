"""Sign Heads with the channel key, keep the newest on disk, and gossip it.

Rules
1. Heads are ordered by (era, version, sequence); the sequence always rises, also across a restart. A sequence more
   than a day ahead of the clock, left by a clock that was wrong, is dropped: nodes would reject it.
2. A Head is signed again every third of its life, even without a change, so that a node detects a freeze attack.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from echo2.coordinator.publishing.published import Published
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.p2p.envelope import seal, verify_envelope
from echo2.p2p.errors import PeerFault
from echo2.p2p.network import Gossip
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.versions import Head, head_topic
from echo2.runtime.files import writing

SEQUENCE_AHEAD = 24 * 3600 * 1000
"""Milliseconds by which a Head's sequence may be ahead of the clock."""
HEAD_LIFE = 180.0
"""Seconds until a Head expires."""

log = structlog.get_logger("coordinator")


class HeadAnnouncer:
    """The newest Head of a run. `sealed`: its envelope, None before the first. `on_announce`: called before each Head
    is published, with era, version and the time, ms since the Unix epoch."""

    def __init__(
        self,
        signing: Signing,
        gossip: Gossip,
        *,
        head_file: Path,
        addresses: Callable[[], Awaitable[list[str]]],
        clock: Callable[[], float],
        on_announce: Callable[[int, int, int], None],
    ) -> None:
        """`addresses`: returns those at which nodes reach this coordinator. `clock`: seconds since the Unix epoch."""
        self._signing = signing
        self._gossip = gossip
        self._head_file = head_file
        self._addresses = addresses
        self._clock = clock
        self.on_announce = on_announce
        self._changed = asyncio.Event()
        self.sealed: bytes | None = None
        self._head = self._restored_head()

    def sign_with(self, signing: Signing) -> None:
        """Switch to the keys of a newer Root, for the Heads to come."""
        self._signing = signing

    async def announce(self, latest: Published, step: int, finished: bool) -> None:
        """Sign a Head of `latest` and gossip it. `step`: the learner's. `finished`: the run has ended."""
        addresses = await self._addresses()  # before the sequence is chosen: two calls may overlap
        now, signing = int(self._clock() * 1000), self._signing
        self._head = Head(
            era=latest.era,
            version=latest.version,
            version_hash=latest.version_hash,
            index_hash=latest.index_hash,
            step=max(step, latest.version),
            sequence=self._next_sequence(now),
            addresses=addresses,
            root_serial=signing.root_serial,
            issued=now,
            expires=now + int(HEAD_LIFE * 1000),
            finished=finished,
        )
        sealed = seal("head", signing.run, encode(self._head), signing.channel)
        with writing(self._head_file) as file:
            file.write(sealed)
        self.on_announce(latest.era, latest.version, now)
        self.sealed = sealed
        self._changed.set()
        log.info("head out", version=latest.version, sequence=self._head.sequence)
        await self._gossip.publish(head_topic(signing.run), sealed)

    async def until_due(self) -> None:
        """Wait until no Head was announced for a third of a Head's life (rule 2)."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(HEAD_LIFE / 3):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _next_sequence(self, now: int) -> int:
        """Return a sequence above the last Head's, unless that one is far ahead of the clock (rule 1)."""
        before = -1 if self._head is None else self._head.sequence
        return max(now, before + 1) if before < now + SEQUENCE_AHEAD else now

    def _restored_head(self) -> Head | None:
        """Return the last Head, for its sequence; None if there is none. Serve it again only if the present channel key
        signed it."""
        signing = self._signing
        try:
            sealed = self._head_file.read_bytes()
            if signing.by_channel(sealed, "head"):
                self.sealed = sealed
            return decode(verify_envelope(sealed, "head", signing.run, signing.channels), Head)
        except FileNotFoundError:
            return None
        except PeerFault as error:
            log.warning("stored Head is invalid; a new one is signed", reason=str(error))
            self.sealed = None
            return None
