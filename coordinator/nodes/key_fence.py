"""The fence between daemons that have one key: leases go to one of them at a time.

Rules
1. A daemon draws a random instance at its start, and each of its requests names it. The instance of the holder, the
   daemon that the key's leases go to, is in the row of the node, so it survives a restart of the coordinator.
2. The first stays while it is live: until `HOLDER_LIVE_MS` after its last request, later by the time that the answer
   told it to wait, and until the last open lease of the key has expired. After a start of the coordinator, each holder
   is live for `HOLDER_LIVE_MS`. So neither a long group nor a restart of the coordinator lets another daemon in
   between.
3. Another daemon becomes the holder by a hello, once the holder is live no longer, or at once if the hello names the
   holder as an earlier daemon of its own home (`after`): that is a restart. Of two copies of a home that name the same
   one, the first wins, and the other then names a daemon that is not the holder. So two daemons never push each other
   out in turn.
4. A daemon without an instance (its program is older) is one more instance, the empty one. One that has an instance
   replaces it at once: that is an update.
5. Leases and asks are for the holder alone. Groups that were leased are taken from either, and so is the account that
   is paid: its owner names it again while a thief is the holder (coordinator/payouts/payee_requests.py, rule 2).
6. Both learn of it with each answer (`rival`): the one that is fenced while the other one works, and the holder for
   `FENCE_NOTICE_MS` after each try. A hello that is refused tells neither: it has made no daemon the holder, nor shown
   that it could not.
7. A hello is answered though it comes long after its time (request_handler.py, rule 3), so whoever saw one can send it
   again whenever he likes. Such a late one makes a daemon the holder only where there is none, or where it names the
   holder; it keeps none live, and nobody is told of it.
8. The memory is that of `Sightings`, which is bounded. A node that was dropped from it is not live.
"""

from collections.abc import Collection
from typing import Final, Literal

from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.sightings import Sightings
from echo2.protocol.requests import Rival

HOUR: Final = 3_600_000
HOLDER_LIVE_MS: Final = 300_000
"""Milliseconds after its last request for which a holder is live."""
FENCED_RETRY_MS: Final = 60_000
"""Milliseconds after which a daemon that is fenced asks again."""
FENCE_NOTICE_MS: Final = HOUR

Place = Literal["holder", "free", "fenced"]


class KeyFence:
    """The holders of all keys. A node is its public key, 32 bytes; an instance has 16 bytes, or none (rule 4)."""

    def __init__(self, database: Database, sightings: Sightings, started: int) -> None:
        """`started`: when this process began, ms."""
        self._database, self._sightings, self._started = database, sightings, started

    def place(self, node: bytes, instance: bytes, now: int) -> Place:
        """Tell whether a daemon is the holder, may become it by a hello, or is fenced."""
        holder = self._holder(node)
        if holder is None or holder == instance:
            return "holder"
        return "fenced" if self._is_live(node, now) else "free"

    def takes(self, node: bytes, instance: bytes, after: Collection[bytes], now: int, *, in_time: bool = True) -> bool:
        """Tell whether a daemon that says hello is the holder from now on; the caller stores it (rules 3 and 7)."""
        holder, place = self._holder(node), self.place(node, instance, now)
        follows = place == "holder" or holder in after or (not holder and bool(instance))
        if not follows and not (in_time and place == "free"):
            if in_time:
                self.on_refusal(node, now)
            return False
        sighting = self._sightings.find(node)
        if sighting is not None and holder != instance:
            sighting.rival = None
        return True

    def on_refusal(self, node: bytes, now: int) -> None:
        """Note that a daemon beside the holder was refused."""
        if (sighting := self._sightings.find(node)) is not None:
            sighting.rival = now

    def on_message(self, node: bytes, instance: bytes, now: int, wait: int = 0) -> None:
        """Note a request. `wait`: milliseconds for which its answer tells the daemon to wait."""
        sighting = self._sightings.find(node)
        if sighting is None or self._holder(node) != instance:
            return
        if sighting.instance is None:
            sighting.instance = instance
        sighting.until = now + HOLDER_LIVE_MS + min(wait, HOUR)

    def rival(self, node: bytes, instance: bytes, now: int) -> Rival:
        """Return what the answer to a daemon tells it of another one with its key (rule 6)."""
        place = self.place(node, instance, now)
        if place != "holder":
            return "works" if place == "fenced" else ""
        sighting = self._sightings.find(node)
        refused = None if sighting is None else sighting.rival
        return "waits" if refused is not None and 0 <= now - refused < FENCE_NOTICE_MS else ""

    def _holder(self, node: bytes) -> bytes | None:
        """Return the holder's instance; None: there is none yet."""
        sighting = self._sightings.find(node)
        if sighting is not None and sighting.instance is not None:
            return sighting.instance
        instance: bytes | None = self._database.value("SELECT instance FROM nodes WHERE key = ?", (node,))
        return instance

    def _is_live(self, node: bytes, now: int) -> bool:
        sighting = self._sightings.find(node)
        until = None if sighting is None else sighting.until
        if 0 <= (self._started + HOLDER_LIVE_MS if until is None else until) - now <= HOLDER_LIVE_MS + HOUR:
            return True
        query = "SELECT EXISTS (SELECT 1 FROM leases WHERE state = 'open' AND node = ? AND expires > ?)"
        return bool(self._database.value(query, (node, now)))
