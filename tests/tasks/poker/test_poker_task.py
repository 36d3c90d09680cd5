"""Poker as a task: one hand for a whole group, moves asked again and forfeited, rewards in chips."""

import random
import re
import sys
from typing import get_args

import pytest

from echo2.tasks import plugins
from echo2.tasks.byte_text import ByteText
from echo2.tasks.plugins import PluginFault
from echo2.tasks.poker.poker_task import HELDOUT_HANDS, NUMBERS, hand_number, task
from echo2.tasks.poker.situation import read, tokens_before
from echo2.tasks.task import Episode, Score, Split, Transcript, replay
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer

TEXT = ByteText()
NAMES = ["kuhn", "kuhn,opponent=uniform", "leduc", "leduc,opponent=uniform"]
NAMES += ["holdem", "holdem,opponent=uniform", "holdem,opponent=caller"]
MOST_MOVES = 16


@pytest.fixture(autouse=True)
def _extra() -> None:
    pytest.importorskip("pokerkit", reason="needs the extra poker")


def said(move: str) -> list[int]:
    return [*TEXT.encode(move), TEXT.eos]


def played(episode: Episode, chance: random.Random) -> tuple[list[str], Transcript]:
    """Play a hand with chance moves; return the environment's texts, and the transcript."""
    texts, tokens, turns = [TEXT.decode(list(episode.prompt))], list[int](), list[int]()
    reply = episode.prompt
    while reply is not None:
        move = chance.choice(re.findall(r"\b[fcb]\d*\b", texts[-1].rpartition(". ")[2]))
        tokens, turns = [*tokens, *said(move)], [*turns, len(said(move))]
        answered = episode.reply(said(move))
        if answered is None:
            break
        reply = answered
        texts, tokens, turns = [*texts, TEXT.decode(list(reply))], [*tokens, *reply], [*turns, len(reply)]
    return texts, Transcript(tokens, turns)


@pytest.mark.parametrize("name", NAMES)
def test_hands_end_and_pay_between_minus_one_and_one(name: str) -> None:
    poker, chance = task(name), random.Random(3)
    rewards = set()
    for index in range(40):
        episode = poker.episode("train", index, TEXT)
        texts, transcript = played(episode, chance)
        assert len(texts) <= MOST_MOVES
        score = replay(poker.episode("train", index, TEXT), transcript, ends=TEXT.ends, limit=4096)
        assert score == episode.score()
        assert -1 <= score.reward <= 1
        assert score.success == (score.reward > 0)
        rewards.add(score.reward)
    assert len(rewards) > 2


def test_a_group_plays_one_hand_against_one_opponent() -> None:
    for name in NAMES:
        first, second = (task(name).episode("train", 5, TEXT) for _ in range(2))
        assert played(first, random.Random(1)) == played(second, random.Random(1))


def test_what_the_policy_sees_is_what_the_measure_asks_for() -> None:
    for index in range(30):
        number, episode = hand_number("train", index), task("leduc").episode("train", index, TEXT)
        seen, moves = list(episode.prompt), 0
        while True:
            situation = episode.situation
            assert seen == tokens_before(number, situation, TEXT)
            move = random.Random(f"{index}/{moves}").choice(situation.legal)
            moves += 1
            answered = episode.reply(said(move))
            if answered is None:
                break
            seen = [*seen, *said(move), *answered]


def test_the_hand_of_the_opponent_is_not_told() -> None:
    prompts: dict[str, set[float]] = {}
    poker = task("kuhn")
    for index in range(200):
        episode = poker.episode("train", index, TEXT)
        alike = re.sub(r"\d+", "", TEXT.decode(list(episode.prompt)))
        while episode.reply(said("c")) is not None:
            continue
        prompts.setdefault(alike, set()).add(episode.score().reward)
    assert len(prompts) == 9
    assert min(prompts["kuhn  card q. c or b>"]) < 0 < max(prompts["kuhn  card q. c or b>"])


def test_a_move_that_is_not_legal_is_asked_again_once_then_forfeits() -> None:
    poker = task("kuhn")
    episode = poker.episode("train", 0, TEXT)
    assert TEXT.decode(list(episode.reply(said("x")) or ())).startswith("no. ")
    assert read("c", episode.situation) == "c"
    assert episode.reply(said("hello")) is None
    assert episode.score() == Score(-1.0, False)


def test_a_hand_that_the_token_limit_cuts_is_forfeited() -> None:
    poker = task("leduc")
    score = replay(poker.episode("train", 0, TEXT), Transcript(TEXT.encode("c"), [1]), ends=TEXT.ends, limit=1)
    assert score == Score(-1.0, False)


def test_a_megabyte_is_no_legal_move() -> None:
    episode = task("holdem").episode("train", 0, TEXT)
    assert TEXT.decode(list(episode.reply(TEXT.encode("c" * 1_000_000)) or ())).startswith("no. ")


def test_the_splits_have_all_numbers_and_share_none() -> None:
    heldout = {hand_number("heldout", index) for index in range(HELDOUT_HANDS)}
    train = {hand_number("train", index) for index in range(0, NUMBERS - HELDOUT_HANDS, 9)}
    assert len(heldout) + len(train) == len(heldout | train) == 2 * HELDOUT_HANDS
    for split in get_args(Split):
        with pytest.raises(IndexError, match="is outside"):
            hand_number(split, NUMBERS)


def test_a_demonstration_is_a_legal_first_move_and_noise_spoils_it() -> None:
    for name in NAMES:
        poker = task(name)
        for index in range(20):
            episode = poker.episode("heldout", index, TEXT)
            shown = poker.demonstration("heldout", index, TEXT, 1, 0.0)
            assert read(TEXT.decode(shown), episode.situation) is not None
            slipped = poker.demonstration("heldout", index, TEXT, 1, 0.0, slip=1.0)
            assert read(TEXT.decode(slipped), episode.situation) is not None
            assert poker.demonstration("heldout", index, TEXT, 1, 1.0) != shown


def test_the_demos_tokenizer_can_play() -> None:
    text = FileTokenizer(char_tokenizer(), EOS)
    episode = task("kuhn").episode("train", 1, text)
    assert len(episode.prompt) <= 32
    assert len(text.encode("c")) == 1
    while episode.reply([*text.encode("c"), text.eos]) is not None:
        continue
    assert abs(episode.score().reward) in (0.5, 1.0)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    {
        "no game": ("", "poker: has nothing behind its colon"),
        "another game": ("omaha", "'omaha' is no game"),
        "another opponent": (
            "kuhn,opponent=tight",
            "choose one of opponent=equilibrium, opponent=uniform, opponent=loose, opponent=blind",
        ),
        "another setting": ("kuhn,seats=6", "'seats=6' is no setting of kuhn"),
        "an opponent without its setting": ("kuhn,uniform", "'uniform' is no setting of kuhn"),
    }.values(),
)
def test_a_faulty_name_is_told(argument: str, sentence: str) -> None:
    with pytest.raises(PluginFault, match=sentence):
        plugins.find(f"poker:{argument}")


def test_a_task_is_had_by_its_name() -> None:
    poker = plugins.find("poker:kuhn,opponent=uniform")
    assert (poker.name, poker.opponent, task("kuhn").opponent) == (
        "poker:kuhn,opponent=uniform",
        "uniform",
        "equilibrium",
    )


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from echo2.tasks.poker import poker_hand

    poker_hand.started_game.cache_clear()
    monkeypatch.setitem(sys.modules, "pokerkit", None)
    with pytest.raises(PluginFault, match=r"task poker needs the extra poker .*: .* install .*\[poker\]"):
        plugins.find("poker:kuhn")
