"""Runs whose prompts are written by a chat template: families as they come from the hub, and what is refused."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from echo2.coordinator.run import setup
from echo2.coordinator.run.chat_settings import hash_of, settings_of
from echo2.coordinator.run.setup import Run
from echo2.coordinator.run.task_processes import host_task
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault
from echo2.tasks.chat import PLAIN_TEMPLATE
from echo2.tasks.task import Transcript
from echo2.tasks.tokenizer import load
from tests.support.chat_families import FAMILIES, tokenizer_of, write_folder
from tests.support.run_folders import NOW

LIMIT = 64


def make(folder: Path, model: Path, tell: Callable[[str], None] = lambda text: None, **section: object) -> Run:
    run = {"task": "guess", "kind": "served", "limit": LIMIT, "heldout": 4, "template": "chat"} | section
    config = setup.settings_for(str(model), {"run": run}, env={})
    return setup.init(folder, str(model), config, now=NOW, report=tell)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow_but("smollm2")
def test_a_family_as_it_comes_from_the_hub_becomes_a_run_and_plays(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    said = list[str]()
    make(tmp_path / "run", write_folder(tmp_path / "model", family), said.append)
    run = setup.load_run(tmp_path / "run", env={}, now=NOW)
    library = tokenizer_of(family)
    assert run.runspec.ends == tuple(library.token_to_id(end) for end in family.ends)
    assert run.runspec.protocols == ((2, 2) if len(family.ends) > 1 else (1, 1))
    assert run.runspec.tasks[0].settings_hash == hash_of(run.task.chat)
    assert not any("plain" in line_said for line_said in said)
    text = load(run.folder.model / "tokenizer.json", *run.runspec.ends)

    async def play() -> None:
        async with host_task(run.task, run.config.environment) as host:
            prompt = library.decode(await host.prompt("train", 0), skip_special_tokens=False)
            assert "guess " in prompt
            assert prompt.endswith(family.suffix.partition("HI")[2])
            low, high = prompt.partition("guess ")[2].partition(">")[0].split("-")
            for end in run.runspec.ends:  # each ends a turn, and the reply stands behind it as the template has it
                for guess, answer in ((low, "higher>"), (high, "lower>")):
                    sampled, given = [*text.encode(guess), end], text.encode(family.suffix.replace("HI", answer))
                    last = [*text.encode(low), text.eos]
                    turns = [len(sampled), len(given), len(last)]
                    score = await host.score("train", 0, Transcript([*sampled, *given, *last], turns), LIMIT)
                    assert 0 <= score.reward <= 1

    asyncio.run(play())


@pytest.mark.slow
def test_a_model_without_a_template_gets_a_plain_one_and_init_says_so(tmp_path: Path) -> None:
    said = list[str]()
    run = make(tmp_path / "run", write_folder(tmp_path / "model", FAMILIES["qwen3"], template=False), said.append)
    assert "the model has no chat template: its prompts have a plain one" in said
    assert "making keys, Root and RunSpec" in said
    assert run.task.chat.template == PLAIN_TEMPLATE


CHANGES: dict[str, Callable[[Path], object]] = {
    "another template": lambda home: (home / "model/chat_template.jinja").write_text("{{ messages[0].content }}"),
    "another named token": lambda home: (home / "model/tokenizer_config.json").write_text(
        json.dumps({"chat_template": FAMILIES["smollm2"].template, "bos_token": "<s>"})
    ),
    "another setting": lambda home: (home / "coordinator.toml").write_text(
        (home / "coordinator.toml").read_text().replace('template = "chat"', 'template = "plain"')
    ),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.slow_but("another named token")
def test_a_run_does_not_go_on_with(what: str, tmp_path: Path) -> None:
    make(tmp_path / "run", write_folder(tmp_path / "model", FAMILIES["smollm2"]), task="single_sum", kind="single")
    CHANGES[what](tmp_path / "run")
    with pytest.raises(SettingsFault, match="is another one than this run was signed with"):
        setup.load_run(tmp_path / "run", env={}, now=NOW)


@pytest.mark.slow
def test_what_makes_no_run(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model", FAMILIES["qwen3"])
    with pytest.raises(SettingsFault, match="nodes render no template"):
        make(tmp_path / "run", model, kind="auto")
    with pytest.raises(SettingsFault, match=r"run\.thinking is for the chat template"):
        make(tmp_path / "run", model, template="plain", thinking=False)
    (model / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(LocalFault, match="the chat template refuses these messages: no"):
        make(tmp_path / "run", model)
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text('{"chat_template": [{"name": "tool_use", "template": "x"}]}')
    with pytest.raises(LocalFault, match="several chat templates, and none named default"):
        make(tmp_path / "run", model)


def test_of_several_named_templates_the_default_one_counts(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model", FAMILIES["llama3"])
    rows = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": rows}))
    section = setup.settings_for(str(model), {"run": {"template": "chat", "thinking": True}}, env={}).run
    settings = settings_of(model, section, "single")
    assert (settings.template, settings.enable_thinking) == ("y", True)
