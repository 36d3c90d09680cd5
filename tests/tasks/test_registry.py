import hashlib
import json
import re

import pytest

from tasks import registry, tokenizer
from tasks.arithmetic import ADD, REVERSE, SINGLE_SUM, Arithmetic, grade
from tasks.guess import GUESS
from tasks.registry import UnknownTask
from tasks.task import InvalidTranscript, Score, Split, Task, Transcript, replay, sampled_mask
from tests.support.paths import VECTORS

CHARS = tokenizer.FileTokenizer(tokenizer.char_tokenizer(), tokenizer.EOS)
SPLITS: tuple[Split, ...] = ("train", "heldout")


class Letters:
    """Any text, one token a character: for tasks whose prompts the demo's characters cannot spell."""

    eos, size = 0, 0x110000

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: object) -> str:
        assert isinstance(tokens, list | tuple)
        return "".join(chr(token) for token in tokens if token != self.eos)


LETTERS = Letters()


def all_tasks() -> list[Task]:
    return [registry.get(name, version) for name, version in registry.known()]


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: task.name)
def test_every_prompt_is_in_exactly_one_split_once(task: Task) -> None:
    train, heldout = (
        [tuple(task.episode(split, index, LETTERS).prompt) for index in range(task.size(split))]
        for split in ("train", "heldout")
    )
    assert len({*train, *heldout}) == len(train) + len(heldout)
    assert len(heldout) == (len(train) + len(heldout)) // getattr(task, "share", 10)


@pytest.mark.parametrize("task", [REVERSE, ADD, SINGLE_SUM], ids=lambda task: task.name)
def test_the_splits_cover_the_whole_space(task: Arithmetic) -> None:
    posed = {task.question(split, index) for split in ("train", "heldout") for index in range(task.size(split))}
    assert posed == {task.pose(number) for number in range(task.count)}


def test_no_two_numbers_are_added_in_both_splits() -> None:
    """Nor twice in one: 3 + 5 would give 5 + 3 away."""
    asked = [SINGLE_SUM.question(split, i)[0] for split in SPLITS for i in range(SINGLE_SUM.size(split))]
    pairs = {tuple(sorted(re.findall(r"\d+", question), key=int)) for question in asked}
    assert len(pairs) == len(asked) == 210
    assert SINGLE_SUM.size("heldout") == 52


def test_prompts_are_pinned_for_every_machine() -> None:
    """Another Python or another machine must pose the same question for the same index."""
    posed = {
        task.name: hashlib.sha256(
            json.dumps(
                [list(task.episode(split, i, LETTERS).prompt) for split in ("train", "heldout") for i in range(10)]
            ).encode()
        ).hexdigest()
        for task in all_tasks()
    }
    assert posed == json.loads((VECTORS / "tasks.json").read_text())


def test_an_index_outside_the_split_is_an_error() -> None:
    for task in all_tasks():
        for index in (-1, task.size("heldout")):
            with pytest.raises(IndexError, match="outside heldout"):
                task.episode("heldout", index, CHARS)


@pytest.mark.parametrize(
    ("task", "number", "question", "answer"),
    [
        (REVERSE, 4821, "4821>", "1284"),
        (REVERSE, 7, "0007>", "7000"),
        (ADD, 3758, "37+58=", "95"),
        (ADD, 9999, "99+99=", "198"),
        (ADD, 0, "00+00=", "0"),
        (SINGLE_SUM, 0, "What is 0 plus 0? Answer with a number only.\nAnswer:", "0"),
        (SINGLE_SUM, 52, "What is 7 plus 9? Answer with a number only.\nAnswer:", "16"),
        (SINGLE_SUM, 51, "What is 9 plus 6? Answer with a number only.\nAnswer:", "15"),
        (SINGLE_SUM, 209, "What is 19 plus 19? Answer with a number only.\nAnswer:", "38"),
    ],
)
def test_questions_have_their_answers(task: Arithmetic, number: int, question: str, answer: str) -> None:
    assert task.pose(number) == (question, answer)


@pytest.mark.parametrize(
    ("output", "answer", "score"),
    [
        ("1284", "1284", Score(1.0, True)),
        ("1285", "1284", Score(0.15, False)),
        ("", "1284", Score(0.0, False)),
        ("12841", "1284", Score(0.16, False)),
        ("9", "1284", Score(0.0, False)),
        ("95" * 50, "95", Score(0.004, False)),
    ],
    ids=["exact", "one wrong", "nothing", "one too many", "all wrong", "many too many"],
)
def test_a_near_miss_earns_at_most_a_fifth(output: str, answer: str, score: Score) -> None:
    assert grade(output, answer) == pytest.approx(score)


def test_demonstrations_are_right_without_noise_and_wrong_with_all() -> None:
    for task in (REVERSE, ADD):
        answer = task.question("train", 5)[1]
        assert task.demonstration("train", 5, CHARS, 0, 0.0) == [*CHARS.encode(answer), CHARS.eos]
        wrong = CHARS.decode(task.demonstration("train", 5, CHARS, 0, 1.0))
        assert len(wrong) == len(answer)
        assert not any(x == y for x, y in zip(wrong, answer, strict=True))


@pytest.mark.parametrize(
    ("task", "question", "answer", "usual"),
    {
        "the digits as they stand": (REVERSE, "0593>", "3950", "0593"),
        "no carry": (ADD, "27+35=", "62", "52"),
        "no carry out of the tens": (ADD, "93+81=", "174", "74"),
        "one too few": (SINGLE_SUM, "What is 5 plus 8? ...", "13", "12"),
        "none below nothing": (SINGLE_SUM, "What is 0 plus 0? ...", "0", "1"),
    }.values(),
)
def test_the_usual_mistake_of_a_task(task: Arithmetic, question: str, answer: str, usual: str) -> None:
    assert task.mistake(question, answer) == usual


def test_so_many_demonstrations_are_slips_and_without_slips_they_are_what_they_were() -> None:
    for task, letters in ((REVERSE, CHARS), (ADD, CHARS), (GUESS, CHARS), (SINGLE_SUM, LETTERS)):
        right = list(task.demonstration("train", 3, letters, 0, 0.0))
        slip = list(task.demonstration("train", 3, letters, 0, 0.0, 1.0))
        assert slip != right
        drawn = [list(task.demonstration("train", 3, letters, seed, 0.0, 0.7)) for seed in range(200)]
        assert 120 <= drawn.count(slip) <= 160
        assert drawn.count(slip) + drawn.count(right) == 200
        assert task.demonstration("train", 3, letters, 7, 0.5, 0.0) == task.demonstration("train", 3, letters, 7, 0.5)


def test_demonstrations_follow_their_seed() -> None:
    assert REVERSE.demonstration("train", 5, CHARS, 1, 0.5) == REVERSE.demonstration("train", 5, CHARS, 1, 0.5)
    drawn = {tuple(REVERSE.demonstration("train", 5, CHARS, seed, 0.5)) for seed in range(50)}
    assert len(drawn) > 20


def test_a_demonstration_scores_as_its_answer_says() -> None:
    for task, letters in ((REVERSE, CHARS), (ADD, CHARS), (GUESS, CHARS), (SINGLE_SUM, LETTERS)):
        tokens = task.demonstration("train", 3, letters, 0, 0.0)
        episode = task.episode("train", 3, letters)
        transcript = Transcript(tokens, [len(tokens)])
        assert replay(episode, transcript, eos=letters.eos, limit=99) == Score(1.0, True)


EPISODES = json.loads((VECTORS / "task_episodes.json").read_text())


def test_each_episode_of_the_vectors_poses_and_scores_as_it_says() -> None:
    """What docs/protocol/tasks.md gives other implementations to check themselves by."""
    wrong = []
    for row in EPISODES:
        episode = registry.get(row["task"], row["version"]).episode(row["split"], row["index"], LETTERS)
        turns = [LETTERS.encode(said) + [LETTERS.eos] * ends for said, ends in row["turns"]]
        transcript = Transcript([token for sampled in turns for token in sampled], [len(sampled) for sampled in turns])
        prompt = LETTERS.decode(list(episode.prompt))
        try:
            replayed = tuple(replay(episode, transcript, eos=LETTERS.eos, limit=row["limit"]))
        except InvalidTranscript:
            replayed = (None, None)
        if (prompt, *replayed) != (row["prompt"], row["reward"], row["success"]):
            wrong.append((row, prompt, replayed))
    assert wrong == []
    assert {(row["task"], row["version"]) for row in EPISODES} == set(registry.known())


def test_an_unknown_task_names_what_there_is() -> None:
    with pytest.raises(UnknownTask, match="add, guess, reverse, single_sum"):
        registry.get("poker", 1)
    with pytest.raises(UnknownTask, match="reverse version 7 is not in this build, which has 1"):
        registry.get("reverse", 7)


def guess_transcript(first: str, hint: str, second: str) -> Transcript:
    turns = [[*CHARS.encode(first), CHARS.eos], CHARS.encode(hint), [*CHARS.encode(second), CHARS.eos]]
    return Transcript([token for sampled in turns for token in sampled], [len(sampled) for sampled in turns])


def guess_episode() -> tuple[int, int, int, int]:
    """(index, low, high, secret) of a prompt with room on both sides of the secret."""
    for index in range(GUESS.size("train")):
        low, high, secret = GUESS.bounds("train", index)
        if low < secret - 1 and secret + 1 < high:
            return index, low, high, secret
    raise AssertionError


def test_a_wrong_guess_gets_a_true_hint_and_a_second_chance() -> None:
    index, low, high, secret = guess_episode()
    for first, hint in ((low, "higher>"), (high, "lower>")):
        transcript = guess_transcript(str(first), hint, str(secret))
        score = replay(GUESS.episode("train", index, CHARS), transcript, eos=CHARS.eos, limit=20)
        assert score == Score(1.0, True)
    missed = guess_transcript(str(low), "higher>", str(secret + 1))
    score = replay(GUESS.episode("train", index, CHARS), missed, eos=CHARS.eos, limit=20)
    assert not score.success
    assert 0 < score.reward < 0.2


def test_every_secret_lies_between_its_bounds() -> None:
    drawn = [GUESS.bounds("train", index) for index in range(GUESS.size("train"))]
    assert all(low <= secret <= high for low, high, secret in drawn)


INDEX, LOW, HIGH, SECRET = guess_episode()
E = CHARS.eos
enc = CHARS.encode
LIES: dict[str, tuple[list[list[int]], str]] = {
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


@pytest.mark.parametrize(("turns", "sentence"), LIES.values(), ids=LIES.keys())
def test_a_transcript_that_the_episode_cannot_have_produced_is_a_lie(turns: list[list[int]], sentence: str) -> None:
    transcript = Transcript([token for sampled in turns for token in sampled], [len(sampled) for sampled in turns])
    with pytest.raises(InvalidTranscript, match=sentence):
        replay(GUESS.episode("train", INDEX, CHARS), transcript, eos=E, limit=20)


def test_a_turn_cut_at_the_limit_is_honest_and_ends_the_episode() -> None:
    cut = [*enc(str(LOW)), E, *enc("higher>"), *enc(str(SECRET))]
    first, last = len(str(LOW)) + 1, len(str(SECRET))
    score = replay(
        GUESS.episode("train", INDEX, CHARS),
        Transcript(cut, [first, len("higher>"), last]),
        eos=E,
        limit=first + last,
    )
    assert score.success
    assert replay(GUESS.episode("train", INDEX, CHARS), Transcript(cut[:first], [first]), eos=E, limit=first).reward < 1


def test_the_mask_is_true_where_the_policy_sampled() -> None:
    assert sampled_mask([2, 1, 3]) == [True, True, False, True, True, True]
