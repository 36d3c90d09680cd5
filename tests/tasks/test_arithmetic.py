"""The arithmetic tasks: questions, grades and demonstrations."""

import pytest

from echo2.tasks.arithmetic import ADD_TASK, REVERSE_TASK, SINGLE_SUM, Arithmetic, grade
from echo2.tasks.task import Score
from tests.support.tokenizers import CHARS


@pytest.mark.parametrize(
    ("task", "number", "question", "answer"),
    [
        (REVERSE_TASK, 4821, "4821>", "1284"),
        (REVERSE_TASK, 7, "0007>", "7000"),
        (ADD_TASK, 3758, "37+58=", "95"),
        (ADD_TASK, 9999, "99+99=", "198"),
        (ADD_TASK, 0, "00+00=", "0"),
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
    for task in (REVERSE_TASK, ADD_TASK):
        answer = task.question("train", 5)[1]
        assert task.demonstration("train", 5, CHARS, 0, 0.0) == [*CHARS.encode(answer), CHARS.eos]
        wrong = CHARS.decode(task.demonstration("train", 5, CHARS, 0, 1.0))
        assert len(wrong) == len(answer)
        assert not any(x == y for x, y in zip(wrong, answer, strict=True))


@pytest.mark.parametrize(
    ("task", "question", "answer", "usual"),
    {
        "the digits as they stand": (REVERSE_TASK, "0593>", "3950", "0593"),
        "no carry": (ADD_TASK, "27+35=", "62", "52"),
        "no carry out of the tens": (ADD_TASK, "93+81=", "174", "74"),
        "one too few": (SINGLE_SUM, "What is 5 plus 8? ...", "13", "12"),
        "none below nothing": (SINGLE_SUM, "What is 0 plus 0? ...", "0", "1"),
    }.values(),
)
def test_the_usual_mistake_of_a_task(task: Arithmetic, question: str, answer: str, usual: str) -> None:
    assert task.mistake(question, answer) == usual


def test_demonstrations_follow_their_seed() -> None:
    assert REVERSE_TASK.demonstration("train", 5, CHARS, 1, 0.5) == REVERSE_TASK.demonstration(
        "train", 5, CHARS, 1, 0.5
    )
    drawn = {tuple(REVERSE_TASK.demonstration("train", 5, CHARS, seed, 0.5)) for seed in range(50)}
    assert len(drawn) > 20
