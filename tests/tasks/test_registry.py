"""The registry of tasks: names, versions, and the golden prompts and episodes."""

import hashlib
import json

import pytest

from echo2.tasks import registry
from echo2.tasks.registry import UnknownTask
from echo2.tasks.task import InvalidTranscript, Task, Transcript, replay
from tests.support.paths import VECTORS
from tests.support.tokenizers import LETTERS


def all_tasks() -> list[Task]:
    return [registry.get(name, version) for name, version in registry.list_tasks()]


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


EPISODES = json.loads((VECTORS / "task_episodes.json").read_text())


def test_each_episode_of_the_vectors_poses_and_scores_as_it_says() -> None:
    """Return the vectors by which docs/protocol/tasks.md lets other implementations check themselves."""
    wrong = []
    for row in EPISODES:
        episode = registry.get(row["task"], row["version"]).episode(row["split"], row["index"], LETTERS)
        turns = [LETTERS.encode(said) + [LETTERS.eos] * ends for said, ends in row["turns"]]
        transcript = Transcript([token for sampled in turns for token in sampled], [len(sampled) for sampled in turns])
        prompt = LETTERS.decode(list(episode.prompt))
        try:
            replayed = tuple(replay(episode, transcript, ends=LETTERS.ends, limit=row["limit"]))
        except InvalidTranscript:
            replayed = (None, None)
        if (prompt, *replayed) != (row["prompt"], row["reward"], row["success"]):
            wrong.append((row, prompt, replayed))
    assert wrong == []
    assert {(row["task"], row["version"]) for row in EPISODES} == set(registry.list_tasks())


def test_an_unknown_task_names_what_there_is() -> None:
    with pytest.raises(UnknownTask, match="add, guess, reverse, single_sum"):
        registry.get("poker", 1)
    with pytest.raises(UnknownTask, match="reverse version 7 is not in this build, which has 1"):
        registry.get("reverse", 7)
