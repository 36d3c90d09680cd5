"""The guessing game: hints, turns, and transcripts that it cannot have produced."""

import pytest

from echo2.tasks.guess import GUESS
from echo2.tasks.task import InvalidTranscript, Score, Transcript, replay
from tests.support.tokenizers import CHARS


def guess_transcript(first: str, hint: str, second: str) -> Transcript:
    turns = [[*CHARS.encode(first), CHARS.eos], CHARS.encode(hint), [*CHARS.encode(second), CHARS.eos]]
    return Transcript([token for sampled in turns for token in sampled], [len(sampled) for sampled in turns])


def guess_episode() -> tuple[int, int, int, int]:
    """Return (index, low, high, secret) of a prompt with room on both sides of the secret."""
    for index in range(GUESS.size("train")):
        low, high, secret = GUESS.bounds("train", index)
        if low < secret - 1 and secret + 1 < high:
            return index, low, high, secret
    raise AssertionError


def test_a_wrong_guess_gets_a_true_hint_and_a_second_chance() -> None:
    index, low, high, secret = guess_episode()
    for first, hint in ((low, "higher>"), (high, "lower>")):
        transcript = guess_transcript(str(first), hint, str(secret))
        score = replay(GUESS.episode("train", index, CHARS), transcript, ends=CHARS.ends, limit=20)
        assert score == Score(1.0, True)
    missed = guess_transcript(str(low), "higher>", str(secret + 1))
    score = replay(GUESS.episode("train", index, CHARS), missed, ends=CHARS.ends, limit=20)
    assert not score.success
    assert 0 < score.reward < 0.2


def test_every_secret_lies_between_its_bounds() -> None:
    drawn = [GUESS.bounds("train", index) for index in range(GUESS.size("train"))]
    assert all(low <= secret <= high for low, high, secret in drawn)


INDEX, LOW, _, SECRET = guess_episode()


E = CHARS.eos


enc = CHARS.encode


IMPOSSIBLE: dict[str, tuple[list[list[int]], str]] = {
    "another hint than the environment's": (
        [[*enc(str(LOW)), E], enc("lower>"), [*enc(str(SECRET)), E]],
        "not the environ",
    ),
    "the hint left out": ([[*enc(str(LOW)), E]], "not over"),
    "a turn after a right guess": ([[*enc(str(SECRET)), E], enc("higher>"), [*enc("1"), E]], "not the environment's"),
    "a third turn": (
        [[*enc(str(LOW)), E], enc("higher>"), [*enc(str(LOW)), E], enc("higher>"), [*enc(str(SECRET)), E]],
        "not the environment's",
    ),
    "tokens after the end of the turn": ([[*enc(str(SECRET)), E, *enc("1")]], "follow the end"),
    "two ends in one turn": ([[*enc(str(SECRET)), E, E]], "follow the end"),
    "a turn that stops early": ([enc(str(LOW))], "without end-of-sequence"),
    "more tokens than the limit": ([[*enc("1" * 20), E]], "more tokens than the limit"),
    "turns that do not add up": ([], "do not add up"),
    "an empty turn": ([[*enc(str(SECRET)), E], []], "do not add up"),
    "an episode that ends with the hint": ([[*enc(str(LOW)), E], enc("higher>")], "not over"),
}


@pytest.mark.parametrize(("turns", "sentence"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_transcript_that_the_episode_cannot_have_produced_is_refused(turns: list[list[int]], sentence: str) -> None:
    transcript = Transcript([token for sampled in turns for token in sampled], [len(sampled) for sampled in turns])
    with pytest.raises(InvalidTranscript, match=sentence):
        replay(GUESS.episode("train", INDEX, CHARS), transcript, ends=(E,), limit=20)


def test_a_turn_cut_at_the_limit_is_honest_and_ends_the_episode() -> None:
    cut = [*enc(str(LOW)), E, *enc("higher>"), *enc(str(SECRET))]
    first, last = len(str(LOW)) + 1, len(str(SECRET))
    score = replay(
        GUESS.episode("train", INDEX, CHARS),
        Transcript(cut, [first, len("higher>"), last]),
        ends=(E,),
        limit=first + last,
    )
    assert score.success
    early = Transcript(cut[:first], [first])
    assert replay(GUESS.episode("train", INDEX, CHARS), early, ends=(E,), limit=first).reward < 1
