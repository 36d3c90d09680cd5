"""Rules of every task: demonstrations that score, and the mask of sampled tokens."""

from echo2.tasks.arithmetic import ADD_TASK, REVERSE_TASK, SINGLE_SUM
from echo2.tasks.guess import GUESS
from echo2.tasks.task import Score, Transcript, replay, sampled_mask
from tests.support.tokenizers import CHARS, LETTERS


def test_so_many_demonstrations_are_slips_and_without_slips_they_are_what_they_were() -> None:
    for task, letters in ((REVERSE_TASK, CHARS), (ADD_TASK, CHARS), (GUESS, CHARS), (SINGLE_SUM, LETTERS)):
        right = list(task.demonstration("train", 3, letters, 0, 0.0))
        slip = list(task.demonstration("train", 3, letters, 0, 0.0, 1.0))
        assert slip != right
        drawn = [list(task.demonstration("train", 3, letters, seed, 0.0, 0.7)) for seed in range(200)]
        assert 120 <= drawn.count(slip) <= 160
        assert drawn.count(slip) + drawn.count(right) == 200
        assert task.demonstration("train", 3, letters, 7, 0.5, 0.0) == task.demonstration("train", 3, letters, 7, 0.5)


def test_a_demonstration_scores_as_its_answer_says() -> None:
    for task, letters in ((REVERSE_TASK, CHARS), (ADD_TASK, CHARS), (GUESS, CHARS), (SINGLE_SUM, LETTERS)):
        tokens = task.demonstration("train", 3, letters, 0, 0.0)
        episode = task.episode("train", 3, letters)
        transcript = Transcript(tokens, [len(tokens)])
        assert replay(episode, transcript, ends=letters.ends, limit=99) == Score(1.0, True)


def test_the_mask_is_true_where_the_policy_sampled() -> None:
    assert sampled_mask([2, 1, 3]) == [True, True, False, True, True, True]
