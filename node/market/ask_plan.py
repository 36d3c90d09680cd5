"""The node's next step towards the ask that it wants: seal, open, or wait. Pure.

Times are ms on the coordinator's clock.

Rules
1. While the asks of the coming epoch are open, a node seals one if the ask that it wants is not the one that stands. It
   is the wanted one, or as near to it as an ask may rise in one epoch (protocol/sealed_asks.py, rule 3).
2. An ask that was sealed for the epoch before, by this process or an earlier one, is sent again as it is until the run
   has it, whatever is wanted by now.
3. After the asks close, the ask is opened that the run has a commitment to. It is opened after a random part of the
   time until the epoch opens, so that nodes do not ask at one moment.
4. If the run has another commitment of this key than this home, another daemon uses the same key: nothing is sent.
5. With nothing to send, the node asks again once the next epoch runs. While an epoch is late, or none is known, it
   looks some `LOOKS_PER_EPOCH` times per epoch, or per `EPOCHLESS_LENGTH_MS`.
6. Asks are sealed in a window before an epoch ends, and opened in one of the same length behind it: the terms of the
   epoch that runs tell how long that is. A node that has an ask to seal asks within the first half of the window; one
   without any ask that stands looks all the time, as the next epoch may be announced early.
"""

from typing import Final, NamedTuple

from echo2.node.trust.market_store import StoredAsk
from echo2.protocol.market import EpochTerms, MarketResponse
from echo2.protocol.sealed_asks import steps_to
from echo2.runtime.units import DAY

LOOKS_PER_EPOCH: Final = 8
"""Nodes spread a question over so small a part of an epoch."""
LEAST_WAIT: Final = 250
"""Milliseconds, at least, between two questions."""
EPOCHLESS_POLL_MS: Final = 10_000
"""Milliseconds between two looks of a node with an ask to seal while no epoch is known."""
EPOCHLESS_LENGTH_MS: Final = 300_000
"""Milliseconds in place of an epoch's length while none is known."""
TWO_DAEMONS: Final = (
    "the run has a sealed ask of this node's key for epoch {epoch} that this home did not seal: another daemon works "
    "with the same key, or this home was restored from a copy; stop one of them. The ask before stands"
)


class Seal(NamedTuple):
    """Seal an ask for an epoch. `stored`: that was sealed before (rule 2); None: `ask` is a new one."""

    epoch: int
    ask: int
    stored: StoredAsk | None


class OpenSealed(NamedTuple):
    """Open an ask."""

    stored: StoredAsk


class Await(NamedTuple):
    """Ask again after some time. `milliseconds`: milliseconds from now. `trouble`: a sentence for the owner; empty:
    none."""

    milliseconds: int
    trouble: str = ""


class KnownMarket(NamedTuple):
    """All that a step follows from. `wanted`: the owner's ask; None: none. `stored`: sealed here for the coming epoch.
    `given_up`: whether the run refused it. `lot`: random, in [0, 1)."""

    answer: MarketResponse
    now: int
    wanted: int | None
    stored: StoredAsk | None
    given_up: bool
    lot: float


def next_step(known: KnownMarket) -> Seal | OpenSealed | Await:
    """Return the next step."""
    coming, answer = known.answer.coming, known.answer
    if coming is None:
        return Await(_until_announced(known))
    own = known.stored if known.stored is not None and known.stored.epoch == coming.epoch else None
    if answer.sealed is not None and (own is None or own.hash != answer.sealed):
        return Await(_until_running(coming, known), TWO_DAEMONS.format(epoch=coming.epoch))
    if known.given_up:
        return Await(_until_running(coming, known))
    if known.now > coming.closes:
        opens = own is not None and answer.sealed is not None and known.now < coming.opens + coming.milliseconds
        return OpenSealed(own) if opens and own is not None else Await(_until_running(coming, known))
    if answer.sealed is not None:
        return Await(_until_closed(coming, known))
    if own is not None:
        return Seal(coming.epoch, own.ask, own)
    steps = [] if known.wanted is None else steps_to(known.wanted, answer.ask)
    return Seal(coming.epoch, steps[0], None) if steps else Await(_until_running(coming, known))


def _until_closed(coming: EpochTerms, known: KnownMarket) -> int:
    """Return the time until the ask is opened (rule 3)."""
    window = max(0, coming.opens - coming.closes)
    return _bound_time(coming.closes + 1 + int(window * (0.1 + 0.4 * known.lot)) - known.now, coming)


def _until_running(coming: EpochTerms, known: KnownMarket) -> int:
    """Return the time until the coming epoch runs."""
    return _after(coming.opens, coming, known)


def _until_announced(known: KnownMarket) -> int:
    """Return the time until the next epoch may be announced (rules 5 and 6)."""
    running, stands = known.answer.running, known.answer.ask
    eager = known.wanted is not None and known.wanted != stands
    if running is None:
        return int((EPOCHLESS_POLL_MS if eager else EPOCHLESS_LENGTH_MS / LOOKS_PER_EPOCH) * (1 + known.lot) / 2)
    end, window = running.opens + running.milliseconds, running.opens - running.closes
    if not eager or window <= 0:
        return _after(0 if eager else end, running, known)
    again = int(window * (1 + known.lot) / 4)
    left = end - 2 * window - known.now
    if left <= 0:
        return _bound_time(again, running)
    in_time = left + int(window * (0.1 + 0.5 * known.lot))
    return _bound_time(in_time if stands is not None else min(in_time, again), running)


def _after(time: int, epoch: EpochTerms, known: KnownMarket) -> int:
    """Return the time until `time`, and every node's own part of an epoch more; of a time that has passed, until the
    next look."""
    left = time - known.now
    wait = left if left > 0 else epoch.milliseconds // (2 * LOOKS_PER_EPOCH)
    return _bound_time(wait + int(epoch.milliseconds * known.lot / LOOKS_PER_EPOCH), epoch)


def _bound_time(milliseconds: int, epoch: EpochTerms) -> int:
    """Return a time within two epochs' length: a clock that is wrong costs no more than that."""
    return max(LEAST_WAIT, min(milliseconds, 2 * epoch.milliseconds, DAY))
