"""A wait for groups is explained in a sentence that names the bottleneck."""

import pytest

from echo2.coordinator.training.wait_reason import GROUP_COUNT_MS, LONG_WAIT_MS, SILENT_MS, Wait, sentence
from echo2.coordinator.verdicts.shortage import Shortage


@pytest.mark.parametrize(
    ("short", "said"),
    [
        (
            Shortage(8, 0, 0, 0),
            "0 of 8 groups of the next batch are ready; no node has asked for a lease",
        ),
        (
            Shortage(8, 3, 12, 0, asked={"": 15}),
            "3 of 8 groups of the next batch are ready; 12 groups wait for the scorer",
        ),
        (
            Shortage(8, 3, 0, 5, flat=4, asked={"": 12}),
            "3 of 8 groups of the next batch are ready; 4 more have all rewards equal, which refill leaves out; "
            "nodes work on 5",
        ),
        (
            Shortage(8, 0, 0, 0, asked={"engine": 3, "stale-version": 40}),
            "0 of 8 groups of the next batch are ready; nodes that ask for a lease get none: "
            "40 stale-version, 3 engine",
        ),
        (
            Shortage(8, 1, 0, 0, asked={"": 2}, decided=200, refused={"drift": 190}),
            "1 of 8 groups of the next batch are ready; no lease is out: those that were given have expired; "
            "refused of the last 200 groups: 190 drift",
        ),
        (
            Shortage(8, 7, 1, 1),
            "7 of 8 groups of the next batch are ready; 1 group waits for the scorer; nodes work on 1",
        ),
    ],
)
def test_the_sentence_names_the_bottleneck(short: Shortage, said: str) -> None:
    assert sentence(short) == said


def test_a_wait_is_silent_for_a_minute_then_shown_and_logged_after_each_hour() -> None:
    wait, asked, warned = Wait(), [], []
    for now in range(0, 2 * LONG_WAIT_MS + GROUP_COUNT_MS, 1_000):
        if wait.due(now):
            asked.append(now)
            if wait.say("nobody came", now):
                warned.append(now)
    assert (asked[0], asked[1] - asked[0]) == (SILENT_MS, GROUP_COUNT_MS)
    assert warned == [LONG_WAIT_MS, 2 * LONG_WAIT_MS]
    assert wait.words == "nobody came"
    wait.end_wait()
    assert wait.words == ""
    assert not wait.due(2 * LONG_WAIT_MS + GROUP_COUNT_MS)
