"""The turns of a rollout in verifiers' server, against one that is written down."""

import gc
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from echo2.tasks.task import (
    Score,
    TaskBroken,
    TaskFault,
    Transcript,
    begin_episode,
    leave_episode,
    prompt_of,
    replay,
    reply_to_episode,
)
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer
from echo2.tasks.verifiers.verifiers_task import LEAST_FIRST_CALL_SECONDS, MOST_SPARE, TRIED_ROLLOUTS, VerifiersTask

TEXT = FileTokenizer(char_tokenizer(), EOS)
ENDED = [7, EOS]


SILENT = "the environment server hangs"


class WrittenServer:
    """Says what is written down for each rollout, one message for each that is asked for. `told`: the orders. `waited`:
    seconds for which it might have been waited for. `ended`: the rollouts that have ended by themselves."""

    def __init__(self, *rollouts: list[dict[str, Any]]) -> None:
        self._rollouts = deque(rollouts)
        self._open: dict[str, deque[dict[str, Any]]] = {}
        self.told: list[tuple[str, str]] = []
        self.waited = 0.0
        self.ended: set[str] = set()

    def has_said(self, name: str) -> bool:
        return name in self.ended

    def listen(self, name: str) -> None: ...

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...

    def tell(self, do: str, name: str = "", **what: object) -> None:
        self.told.append((do, name))
        if do == "begin":
            self._open[name] = deque(self._rollouts[0] if len(self._rollouts) == 1 else self._rollouts.popleft())

    def hear(self, name: str, seconds: float) -> dict[str, Any]:
        message = self._open[name].popleft()
        self.waited += seconds
        if message.get("fault") == SILENT:
            raise TaskBroken(SILENT)
        if "fault" in message:
            raise TaskFault(message["fault"], verified=True)
        return message

    def orders(self, do: str) -> int:
        return sum(order == do for order, _ in self.told)


def task_on(*rollouts: list[dict[str, Any]], opened: bool = False) -> tuple[VerifiersTask, WrittenServer]:
    server = WrittenServer(*rollouts)
    return VerifiersTask("verifiers:/a.toml", 3, {"train": 4, "heldout": 2}, server, opened=opened), server


TWO_TURNS = [{"called": [4, 5]}, {"called": [4, 5, *ENDED, 8, 9]}, {"reward": 0.5, "sampled": [ENDED, [6, EOS]]}]


def test_each_call_of_the_rollout_is_a_turn_and_its_trace_the_score() -> None:
    task, _ = task_on(TWO_TURNS)
    episode = begin_episode(task, "train", 1, TEXT)
    assert list(episode.prompt) == [4, 5]
    assert episode.reply(ENDED) == [8, 9]
    assert episode.reply([6, EOS]) is None
    assert episode.score() == Score(0.5, False)


def test_a_tokenizer_is_there_for_the_server_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for end in ("closed", "forgotten"):
        task, _ = task_on(TWO_TURNS)
        begin_episode(task, "train", 1, TEXT)
        assert [path.name for path in tmp_path.glob("*/tokenizer.json")] == ["tokenizer.json"]
        if end == "closed":
            task.close()
            assert list(tmp_path.iterdir()) == []
        del task
        gc.collect()
        assert list(tmp_path.iterdir()) == []


def test_a_played_episode_is_scored_as_any_other_task() -> None:
    task, _ = task_on(TWO_TURNS)
    transcript = Transcript([*ENDED, 8, 9, 6, EOS], [2, 2, 2])
    assert replay(begin_episode(task, "train", 1, TEXT), transcript, ends=TEXT.ends, limit=16) == Score(0.5, False)


@pytest.mark.parametrize(
    ("second", "reason"),
    {
        "other tokens in the prompt": ({"called": [4, 6, *ENDED, 8]}, "rewrites its history.* from number 1 on"),
        "the answer written anew": ({"called": [4, 5, 7, 8, 9]}, "rewrites its history.* from number 3 on"),
        "a shorter conversation": ({"called": [4, 5]}, "rewrites its history.* from number 2 on"),
        "nothing said": ({"called": [4, 5, *ENDED]}, "says nothing in between"),
        "an error of its own": ({"fault": "KeyError: 'x'"}, "KeyError"),
    }.values(),
)
def test_an_answer_that_is_no_turn_fails_the_episode(second: dict[str, Any], reason: str) -> None:
    task, _ = task_on(TWO_TURNS, TWO_TURNS, [{"called": [4, 5]}, second])
    leave_episode(begin_episode(task, "train", 0, TEXT))  # the first row is tried twice
    episode = begin_episode(task, "train", 1, TEXT)
    with pytest.raises(TaskFault, match=reason):
        episode.reply(ENDED)


@pytest.mark.parametrize("sampled", [[[7, 8]], [ENDED, ENDED], []])
def test_a_trace_with_other_sampled_tokens_has_no_score(sampled: list[list[int]]) -> None:
    task, _ = task_on([{"called": [4, 5]}, {"reward": 1.0, "sampled": sampled}])
    episode = begin_episode(task, "train", 1, TEXT)
    assert episode.reply(ENDED) is None
    with pytest.raises(TaskFault, match="are not those that were sampled"):
        episode.score()


def test_a_turn_at_the_limit_ends_the_rollout_and_is_scored() -> None:
    task, server = task_on([*TWO_TURNS[:2], {"reward": 0.25, "sampled": [ENDED]}])
    episode = begin_episode(task, "train", 1, TEXT)
    assert episode.reply(ENDED) == [8, 9]
    assert episode.score() == Score(0.25, False)
    assert server.orders("stop") == 1


def test_a_rollout_that_asks_the_model_nothing_poses_no_prompt() -> None:
    task, _ = task_on([{"reward": 1.0, "sampled": []}])
    with pytest.raises(TaskFault, match="before the model was asked"):
        begin_episode(task, "train", 1, TEXT)


def test_a_taskset_whose_samples_have_other_prompts_is_refused_at_its_first_row() -> None:
    task, _ = task_on([{"called": [4, 5]}], [{"called": [4, 6]}])
    with pytest.raises(TaskFault, match="prompts of row 0 differ from sample to sample"):
        prompt_of(task, "train", 0, TEXT)


def calls(*prompts: list[int]) -> list[list[dict[str, Any]]]:
    """Return rollouts that play a turn: those that tell how prompts begin, and one for each of these prompts."""
    tried = [[4, 5, 2 + number % 3] for number in range(TRIED_ROLLOUTS)]
    return [[{"called": prompt}, {"reward": 0.5, "sampled": [ENDED]}] for prompt in (*tried, *prompts)]


def test_an_opened_task_poses_what_all_prompts_begin_with_and_opens_an_episode_with_the_rest() -> None:
    task, _ = task_on(*calls([4, 5, 8, 9]), opened=True)
    assert prompt_of(task, "train", 3, TEXT) == prompt_of(task, "heldout", 1, TEXT) == [4, 5]
    episode = begin_episode(task, "heldout", 0, TEXT)
    assert reply_to_episode(episode, [], prompt=[4, 5]) == [8, 9]
    assert reply_to_episode(episode, ENDED) is None
    assert episode.score() == Score(0.5, False)


def test_a_prompt_that_begins_otherwise_fails_its_episode_and_shortens_those_posed_later() -> None:
    task, _ = task_on(*calls([4, 9, 9], [4, 9, 8]), opened=True)
    assert prompt_of(task, "train", 0, TEXT) == [4, 5]
    with pytest.raises(TaskFault, match="does not begin as those of other episodes do"):
        reply_to_episode(begin_episode(task, "heldout", 0, TEXT), [], prompt=[4, 5])
    assert prompt_of(task, "train", 1, TEXT) == [4]
    assert reply_to_episode(begin_episode(task, "heldout", 0, TEXT), [], prompt=[4]) == [9, 8]


def test_a_rollout_that_fails_to_pose_its_prompt_fails_no_other_sample_of_its_row() -> None:
    failed: list[dict[str, Any]] = [{"fault": "KeyError: 'x'"}]
    task, server = task_on(TWO_TURNS, TWO_TURNS, failed, TWO_TURNS)
    leave_episode(begin_episode(task, "train", 0, TEXT))  # the first row is tried twice
    for turn in (None, [8, 9]):
        episode = begin_episode(task, "train", 1, TEXT)
        if turn is None:
            with pytest.raises(TaskFault, match="KeyError: 'x'"):
                reply_to_episode(episode, ENDED)
        else:
            assert reply_to_episode(episode, ENDED) == turn
        leave_episode(episode)
    assert server.orders("leave") == 2


@pytest.mark.parametrize("odd", [[{"fault": "KeyError: 'x'"}], [{"called": [9, 9]}]], ids=["fails", "begins otherwise"])
def test_a_sample_that_cannot_be_opened_takes_no_other_sample_of_its_row_with_it(odd: list[dict[str, Any]]) -> None:
    task, server = task_on(*calls()[:TRIED_ROLLOUTS], odd, *calls([4, 5, 8])[TRIED_ROLLOUTS:], opened=True)
    assert prompt_of(task, "heldout", 0, TEXT) == [4, 5]
    first, second = begin_episode(task, "heldout", 0, TEXT), begin_episode(task, "heldout", 0, TEXT)
    with pytest.raises(TaskFault):
        reply_to_episode(first, [], prompt=[4, 5])
    leave_episode(first)
    assert reply_to_episode(second, [], prompt=[4, 5]) == [8]
    assert server.orders("leave") == 1


def test_rollouts_that_fail_at_the_trial_of_beginnings_are_left_out() -> None:
    task, server = task_on([{"fault": "KeyError: 'x'"}], *calls()[1:], opened=True)
    assert prompt_of(task, "train", 3, TEXT) == [4, 5]
    assert (server.orders("begin"), server.orders("leave")) == (TRIED_ROLLOUTS, 1)


def test_a_trial_of_beginnings_that_failed_is_made_again() -> None:
    failed: list[list[dict[str, Any]]] = [[{"fault": "no answer within 8 s"}] for _ in range(TRIED_ROLLOUTS)]
    task, _ = task_on(*failed, *calls(), opened=True)
    with pytest.raises(TaskFault, match="no answer within 8 s"):
        prompt_of(task, "train", 3, TEXT)
    assert prompt_of(task, "train", 3, TEXT) == [4, 5]


def test_a_trial_of_beginnings_takes_the_time_of_one_answer_and_ends_with_a_server_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, server = task_on([{"fault": "no answer"}], opened=True)
    clock = iter([0.0] + [8.0 * number for number in range(TRIED_ROLLOUTS)])
    monkeypatch.setattr("echo2.tasks.verifiers.verifiers_task.time.monotonic", lambda: next(clock))
    with pytest.raises(TaskFault, match="no answer"):
        task.episode("train", 3, TEXT)
    assert server.waited == pytest.approx(8.0 + LEAST_FIRST_CALL_SECONDS * (TRIED_ROLLOUTS - 1))
    monkeypatch.undo()
    task, server = task_on([{"fault": SILENT}], opened=True)
    with pytest.raises(TaskBroken):
        task.episode("train", 3, TEXT)
    assert server.waited < 8.1


def test_the_last_token_of_a_prompt_is_always_the_environments_own() -> None:
    task, _ = task_on([{"called": [4, 5, 6]}], opened=True)
    assert prompt_of(task, "train", 0, TEXT) == [4, 5]
    assert reply_to_episode(begin_episode(task, "train", 0, TEXT), [], prompt=[4, 5]) == [6]


def test_prompts_without_a_token_in_common_are_refused() -> None:
    task, _ = task_on(*calls([9, 9]), opened=True)
    begin_episode(task, "train", 0, TEXT)
    with pytest.raises(TaskFault, match="does not begin"):
        reply_to_episode(begin_episode(task, "heldout", 0, TEXT), [], prompt=[4, 5])
    with pytest.raises(TaskFault, match=r"no token in common at their beginning.* system message"):
        prompt_of(task, "train", 0, TEXT)


def test_a_later_sample_with_another_prompt_fails() -> None:
    task, _ = task_on(TWO_TURNS, TWO_TURNS, TWO_TURNS, [{"called": [4, 6]}])
    assert prompt_of(task, "train", 0, TEXT) == [4, 5]
    assert begin_episode(task, "train", 1, TEXT).reply(ENDED) == [8, 9]
    with pytest.raises(TaskFault, match="prompts of row 1 differ"):
        begin_episode(task, "train", 1, TEXT).reply(ENDED)


def test_a_rollout_that_only_posed_a_prompt_is_played_by_the_first_sample() -> None:
    task, server = task_on(TWO_TURNS)
    for _ in range(3):
        assert prompt_of(task, "train", 0, TEXT) == [4, 5]
    assert server.orders("begin") == 2  # both of the trial
    episode = begin_episode(task, "train", 0, TEXT)
    assert episode.reply(ENDED) == [8, 9]
    leave_episode(episode)
    assert (server.orders("begin"), server.orders("leave")) == (2, 1)


def test_rollouts_that_nobody_plays_are_cancelled_beyond_a_number() -> None:
    server = WrittenServer(TWO_TURNS)
    task = VerifiersTask("verifiers:/a.toml", 3, {"train": 100, "heldout": 2}, server)
    for index in range(MOST_SPARE + 2):
        assert prompt_of(task, "train", index, TEXT) == [4, 5]
    assert server.orders("leave") == 3  # row 0 has two


def test_a_rollout_that_failed_before_its_first_call_is_not_kept_for_the_next_sample() -> None:
    task, server = task_on(TWO_TURNS, TWO_TURNS, [{"fault": "ConnectionError"}], TWO_TURNS)
    prompt_of(task, "train", 0, TEXT)  # the first row is tried twice
    with pytest.raises(TaskFault, match="ConnectionError"):
        prompt_of(task, "train", 1, TEXT)
    assert prompt_of(task, "train", 1, TEXT) == [4, 5]
    assert server.orders("leave") == 1


def test_a_rollout_with_another_prompt_than_its_row_is_not_kept_for_the_next_sample() -> None:
    task, server = task_on(TWO_TURNS, TWO_TURNS, TWO_TURNS, [{"called": [4, 6]}], TWO_TURNS)
    prompt_of(task, "train", 0, TEXT)
    prompt_of(task, "train", 1, TEXT)
    played, other = begin_episode(task, "train", 1, TEXT), begin_episode(task, "train", 1, TEXT)
    assert played.reply(ENDED) == [8, 9]
    with pytest.raises(TaskFault, match="prompts of row 1 differ"):
        other.reply(ENDED)
    leave_episode(other)
    assert begin_episode(task, "train", 1, TEXT).reply(ENDED) == [8, 9]
    assert server.orders("leave") == 1


def test_a_prompt_that_cannot_be_opened_is_not_kept_for_the_next_sample() -> None:
    task, server = task_on(*calls([4, 9, 9], [4, 5, 8]), opened=True)
    prompt_of(task, "train", 0, TEXT)
    with pytest.raises(TaskFault, match="does not begin"):
        reply_to_episode(begin_episode(task, "heldout", 0, TEXT), [], prompt=[4, 5])
    assert reply_to_episode(begin_episode(task, "heldout", 0, TEXT), [], prompt=[4, 5]) == [8]
    assert server.orders("leave") == 1


def test_a_rollout_that_has_ended_before_a_sample_came_costs_the_sample_nothing() -> None:
    task, server = task_on(TWO_TURNS)
    prompt_of(task, "train", 0, TEXT)
    server.ended |= {name for order, name in server.told if order == "begin"}
    assert begin_episode(task, "train", 0, TEXT).reply(ENDED) == [8, 9]
    assert (server.orders("begin"), server.orders("leave")) == (3, 2)


def test_a_trial_that_fails_leaves_no_rollout_open() -> None:
    task, server = task_on([{"called": [4, 5]}], [{"called": [4, 6]}])
    with pytest.raises(TaskFault, match="prompts of row 0 differ"):
        prompt_of(task, "train", 0, TEXT)
    assert (server.orders("begin"), server.orders("leave")) == (2, 1)  # the first one is spare


def test_a_row_outside_its_split_is_an_error() -> None:
    task, _ = task_on(TWO_TURNS)
    with pytest.raises(TaskFault, match="index 2 is outside heldout"):
        begin_episode(task, "heldout", 2, TEXT)
