"""Runs whose prompts are written by a chat template, for models in the form of each family; and long answers."""

from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.metrics import status
from echo2.coordinator.run import chat_settings, model_folder
from echo2.coordinator.settings.training_config import RunSection
from echo2.coordinator.web import page, prometheus
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Rollout, Submission
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.tasks.chat import ChatTokenizer
from echo2.tasks.tokenizer import load
from tests.support.bigram import random_table, write_table
from tests.support.chat_families import FAMILIES, end_ids, tokenizer_of, write_folder
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.hosted_task import HostedTask, ServedTask, Talks
from tests.support.swarm import Swarm, finished, make_swarm, whole, working


class ChatRun:
    """A family's model, random but for how likely its ends are. `likelier`: nats by which each end is likelier than
    another token."""

    def __init__(self, folder: Path, name: str, likelier: float) -> None:
        self.family, self.folder = FAMILIES[name], folder
        self.model = write_folder(folder / "model", self.family)
        self.ends = end_ids(self.family)
        self.library = tokenizer_of(self.family)
        table = random_table(0, self.library.get_vocab_size())
        table[:, self.ends] += likelier
        write_table(self.model / "model.safetensors", table)

    def text(self, **section: Any) -> ChatTokenizer:
        settings = chat_settings.settings_of(self.model, RunSection(template="chat", **section), SERVED_KIND)
        assert settings is not None
        facts = model_folder.facts(self.model)
        return ChatTokenizer(load(self.model / "tokenizer.json", facts.eos, *facts.other_ends), settings)

    def swarm(self, host: TaskHost, **run: Any) -> Swarm:
        return make_swarm(self.folder, host=host, model=self.model, task=host.facts.name, template="chat", **run)


def rollouts(coordinator: Coordinator) -> list[Rollout]:
    rows = coordinator.group_service.database.all("SELECT payload FROM submissions WHERE payload IS NOT NULL")
    return [rollout for (payload,) in rows for rollout in decode(payload, Submission).rollouts]


@pytest.mark.parametrize("name", FAMILIES)
@on_fake_clock
@pytest.mark.slow
async def test_a_family_talks_behind_its_template_and_each_of_its_ends_ends_a_turn(name: str, tmp_path: Path) -> None:
    run = ChatRun(tmp_path, name, likelier=2.0)
    text = run.text()
    swarm = run.swarm(ServedTask(text, Talks(2)), kind=SERVED_KIND, limit=60, steps=6)
    assert swarm.run.runspec.ends == tuple(run.ends)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice"), swarm.node("bob")):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        state, received = coordinator.view_builder.build(), rollouts(coordinator)
    assert (state.step, state.refused, state.undecided) == (6, {}, 0)
    given = text.encode(run.family.suffix.replace("HI", "And then?"))
    ended = set[int]()
    for rollout in received:
        first, *more = rollout.turns
        if more:  # else the limit cut the first turn
            assert rollout.tokens[first : first + more[0]] == given
            ended.add(rollout.tokens[first - 1])
    assert ended == set(run.ends)


@on_fake_clock
@pytest.mark.slow
async def test_a_thinking_model_answers_with_thousands_of_tokens_and_cut_answers_are_counted_apart(
    tmp_path: Path,
) -> None:
    run = ChatRun(tmp_path, "qwen3", likelier=-4.0)
    prompts = {}
    for thinking in (True, False):
        host = HostedTask(run.text(thinking=thinking), Talks(1))
        prompts[thinking] = run.library.decode(await host.prompt("train", 0), skip_special_tokens=False)
    assert prompts[False] == prompts[True] + "<think>\n\n</think>\n\n"
    host = HostedTask(run.text(thinking=True), Talks(1))
    swarm = run.swarm(host, kind="single", limit=2_000, steps=1, heldout=1, thinking=True)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await until(lambda: finished(coordinator), 7_200)
            whole(swarm)
        state, received = coordinator.view_builder.build(), rollouts(coordinator)
    assert state.refused == {}
    lengths = [len(rollout.tokens) for rollout in received]
    cut = sum(rollout.tokens[-1] not in run.ends for rollout in received)
    assert max(lengths) == 2_000
    assert 0 < cut < len(received)
    (row,) = state.tasks
    assert row.cut == cut / len(received)
    assert f"{100 * row.cut:.1f} % of their answers cut" in "\n".join(status.lines(state))
    assert "The token limit cut" in page.live(state)
    assert 'echo2_task_cut_ratio{task="riddle"}' in prometheus.exposition(state).decode()
