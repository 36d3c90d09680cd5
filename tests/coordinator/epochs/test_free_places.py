"""An attacker who fills the places of free keys in each epoch delays a newcomer, and does not keep it out."""

import pytest

from echo2.coordinator.epochs.free_places import (
    FREE_ASKS,
    FREE_OF_PARTY,
    OFFERED_FREE_KEYS,
    WAITING_KEYS_PLACES,
    FreePlaces,
)
from echo2.protocol.sealed_asks import BadAsk

EPOCH = 60_000


def flood(places: FreePlaces, epoch: int, parties: int) -> int:
    """Seal asks of as many new keys as there are places, of many parties; return how many had one."""
    taken = 0
    for number in range(parties * (FREE_OF_PARTY + 1)):
        try:
            places.take(f"{epoch} {number}", f"party {number % parties}", epoch, epoch * EPOCH)
            taken += 1
        except BadAsk:
            pass
    return taken


def has_place(places: FreePlaces, epoch: int) -> bool:
    """Seal an ask of the honest newcomer, as soon as the flood has sealed its own; tell whether it had a place."""
    try:
        places.take("honest", "its party", epoch, epoch * EPOCH)
    except BadAsk:
        return False
    return True


def test_an_honest_newcomer_gets_a_place_behind_those_that_waited_before() -> None:
    places, parties, epoch = FreePlaces(), 100, 1
    most = parties * FREE_OF_PARTY // WAITING_KEYS_PLACES + 2
    assert flood(places, epoch, parties) == FREE_ASKS
    while not has_place(places, epoch):
        epoch += 1
        flood(places, epoch, parties)
        assert epoch <= most
    assert epoch > 2


def test_a_place_of_one_that_waited_and_does_not_come_is_lost_for_one_epoch() -> None:
    places = FreePlaces()
    flood(places, 1, 40)
    assert flood(places, 2, 40) == FREE_ASKS - WAITING_KEYS_PLACES
    assert flood(places, 3, 40) == FREE_ASKS - WAITING_KEYS_PLACES


def test_of_one_party_few_keys_wait() -> None:
    places = FreePlaces()
    assert flood(places, 1, 1) == FREE_OF_PARTY
    for number in range(100):
        with pytest.raises(BadAsk):
            places.take(f"more {number}", "party 0", 1, EPOCH)
    flood(places, 1, 40)
    epoch = 1
    while not has_place(places, epoch):
        epoch += 1
        assert epoch <= 6  # at most 4 keys of each of 40 parties wait before it
        flood(places, epoch, 40)


def test_a_key_whose_ask_does_not_stand_seals_for_the_next_epoch_at_once() -> None:
    places = FreePlaces()
    places.take("missed", "party", 1, EPOCH)
    places.take("missed", "party", 2, 2 * EPOCH)
    with pytest.raises(BadAsk, match="until then the one that stands counts"):
        places.take("missed", "party", 3, 3 * EPOCH, stands=True)
    places.take("missed", "party", 99, 99 * EPOCH, stands=True)


def test_an_epoch_is_opened_with_few_free_keys_of_a_party_those_that_sealed_last() -> None:
    places, keys = FreePlaces(), list[tuple[str, str]]()
    for epoch in range(1, 21):
        for number in range(FREE_OF_PARTY):
            places.take(f"{epoch} {number}", "party", epoch, epoch * EPOCH)
            keys.append((f"{epoch} {number}", "party"))
    places.take("honest", "its party", 20, 20 * EPOCH)
    assert places.offered_keys([("honest", "its party"), *keys]) == {"honest", "20 0", "20 1", "20 2", "20 3"}
    assert FreePlaces().offered_keys([*keys, ("honest", "its party")]) == {"honest", "1 0", "1 1", "1 2", "1 3"}


def test_free_keys_of_many_parties_leave_room_for_the_one_that_sealed_last() -> None:
    places = FreePlaces()
    places.take("honest", "its party", 1, EPOCH)
    offered = places.offered_keys([("honest", "its party"), *((f"{n}", f"{n}") for n in range(2 * OFFERED_FREE_KEYS))])
    assert len(offered) == OFFERED_FREE_KEYS
    assert "honest" in offered
