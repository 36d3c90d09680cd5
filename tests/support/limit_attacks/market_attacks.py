"""Attacks on the limits of a run that pays money: presence, places for asks, payout accounts."""

from contextlib import suppress
from pathlib import Path

from echo2.coordinator.epochs.free_places import FREE_ASKS, FREE_OF_PARTY, FreePlaces
from echo2.coordinator.epochs.presence import MOST_NEWCOMERS, MOST_STRANGERS, MOST_WORKERS, Kind, Presence
from echo2.protocol.market import PayeeRequest, PayeeResponse
from echo2.protocol.sealed_asks import BadAsk
from tests.support.group_world import ALICE, BOB
from tests.support.limit_attacks.attack import Taken, lacking
from tests.support.market_world import NANO, MarketWorld


def present_keys(folder: Path, seconds: float) -> Taken:
    """Ask with more keys without work than are remembered, with an ask and without."""
    presence = Presence(600_000)
    presence.note("node", "home", 0, Kind.WORKER)
    most = MOST_STRANGERS + MOST_NEWCOMERS
    for number in range(MOST_WORKERS + most):
        presence.note(f"eve {number}", "", 1, Kind(number % 2))
    kept = len(presence.here(2)) - 1
    return Taken(most, MOST_WORKERS + most, kept, lacking("node" in presence.here(2), "its presence"))


def free_asks(folder: Path, seconds: float) -> Taken:
    """Seal asks with more new keys than an epoch has places for; nodes with accepted work need none of them."""
    places, epoch = FreePlaces(), 60_000

    def seal(number: int, at: int) -> None:
        places.take(f"eve {number}", f"8.8.{number // 8}.0/24", at, at * epoch)

    for number in range(4 * FREE_ASKS):
        with suppress(BadAsk):
            seal(number, 1)
    during = places._taken.total()
    refused = lacking(during <= FREE_ASKS, "a bound")
    refused += lacking(max(places._taken.values()) <= FREE_OF_PARTY, "a bound of one party")
    next_epoch = 2 + int(1000 * seconds) // epoch
    places.take("newcomer", "9.9.9.0/24", next_epoch, next_epoch * epoch)  # raises where it is refused
    return Taken(1, during, places._taken.total(), refused)


def payout_accounts(folder: Path, seconds: float) -> Taken:
    """State accounts with a thief's copy of a key, one after the other, and with a key without work."""
    world = MarketWorld(folder)
    try:
        world.open_with({ALICE: NANO // 10})
        world.accepted()

        def states(account: str, node: bytes = ALICE) -> bool:
            answer = world.market.payees.answer(node, PayeeRequest(account=account), world.now)
            return isinstance(answer, PayeeResponse)

        taken = [states(f"a thief's {number}") for number in range(3)]
        refused = lacking(taken == [True, False, False] and not states("another", BOB), "a bound")
        world.now += int(1000 * seconds)
        refused += lacking(states("the owner's"), "its own account, before the thief's is in force")
        return Taken(0, taken.count(False), 0, refused)
    finally:
        world.close()
