"""The trusted set against python-tuf over random histories: both trust the same documents at each step."""

from typing import NamedTuple

import pytest

from tests.support.tuf_repository import (
    DAY,
    HEAD_LIFE,
    History,
    OurClient,
    Roles,
    RootStep,
    Trusted,
    TufClient,
    VersionStep,
    content_of,
    tuf_root,
)

STEPS = 12
NOW = 1000 * DAY


class Signed(NamedTuple):
    """A Root: its root keys, how many must sign, and the keys that did."""

    keys: tuple[int, ...]
    threshold: int
    signers: tuple[int, ...]


FIVE = (0, 1, 2, 3, 4)
CHAINS: dict[str, tuple[list[Signed], int]] = {
    "one key after another": ([Signed((1,), 1, (1,)), Signed((2,), 1, (1, 2)), Signed((2,), 1, (2,))], 3),
    "signatures of strangers beside": ([Signed((1,), 1, (3, 1, 4)), Signed((2,), 1, (3, 2, 1, 4))], 2),
    "three of five, each time others": ([Signed(FIVE, 3, (0, 2, 4)), Signed(FIVE, 3, (1, 3, 4))], 2),
    "one of five replaced": ([Signed(FIVE, 3, (0, 2, 4)), Signed((0, 1, 3, 4, 5), 3, (0, 1, 4))], 2),
    "one of five replaced, by old signatures": ([Signed(FIVE, 3, (0, 2, 4)), Signed((0, 1, 3, 4, 5), 3, (0, 2, 4))], 1),
    "one of five replaced, by new signatures": ([Signed(FIVE, 3, (0, 2, 4)), Signed((0, 1, 3, 4, 5), 3, (0, 4, 5))], 1),
    "all keys replaced": ([Signed((0, 1), 2, (0, 1)), Signed((2, 3), 2, (0, 1, 2, 3)), Signed((2, 3), 2, (2, 3))], 3),
    "all keys replaced, by the old ones alone": ([Signed((0, 1), 2, (0, 1)), Signed((2, 3), 2, (0, 1))], 1),
    "all keys replaced, by the new ones alone": ([Signed((0, 1), 2, (0, 1)), Signed((2, 3), 2, (2, 3))], 1),
    "a higher threshold": ([Signed((1, 2, 3), 1, (1,)), Signed((1, 2, 3), 2, (1, 2))], 2),
    "a higher threshold that is not reached": ([Signed((1, 2, 3), 1, (1,)), Signed((1, 2, 3), 2, (2,))], 1),
    "a lower threshold": ([Signed((1, 2, 3), 2, (1, 2)), Signed((1, 2, 3), 1, (2, 3)), Signed((1, 2, 3), 1, (3,))], 3),
    "a lower threshold by one signature": ([Signed((1, 2, 3), 2, (1, 2)), Signed((1, 2, 3), 1, (1,))], 1),
    "one key that signs twice": ([Signed((1, 2), 2, (1, 2)), Signed((1, 2), 2, (1, 1))], 1),
}  # fmt: skip


@pytest.mark.parametrize("what", CHAINS)
def test_both_follow_a_chain_of_roots_equally_far(what: str) -> None:
    roots, serial = CHAINS[what]
    steps = [
        RootStep(number, Roles(one.keys, one.threshold, 8, 9), one.signers, NOW + 300 * DAY)
        for number, one in enumerate(roots, start=1)
    ]
    ours, theirs = OurClient(steps[0], NOW), TufClient(tuf_root(steps[0]), 9)
    for step in steps[1:]:
        for client in (ours, theirs):
            client.offer_root(step, NOW)
    assert (ours.state.serial, theirs.state.serial) == (serial, serial)


def played(seeds: range) -> list[Trusted]:
    states = []
    for seed in seeds:
        history = History(seed)
        history.play(STEPS)
        states.append(history.ours.state)
    return states


def test_random_histories_end_in_the_same_trusted_documents() -> None:
    states = played(range(30))
    assert max(state.serial for state in states) >= 5
    assert sum(state.version is not None for state in states) >= 15


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_10000_random_histories_end_in_the_same_trusted_documents() -> None:
    states = played(range(1_000, 11_000))
    assert sum(state.version is not None for state in states) >= 5_000


def test_a_second_version_with_one_number_is_refused_here_and_taken_by_tuf() -> None:
    first = RootStep(1, Roles((0,), 1, 8, 9), (0,), NOW + 300 * DAY)
    ours, theirs = OurClient(first, NOW), TufClient(tuf_root(first), 9)
    for content, sequence in ((1, 100), (2, 101)):
        step = VersionStep(1, sequence, content, content, 8, 9, NOW + HEAD_LIFE)
        for client in (ours, theirs):
            client.offer_version(step, NOW)
    assert (ours.state.content, theirs.state.content) == (content_of(1), content_of(2))
