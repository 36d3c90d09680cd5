"""`echo2-coord task try --model`: what a real model answers, and the scores of the task for it."""

import re
from ast import literal_eval
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.runtime.exit_codes import Exit
from echo2.tasks import registry
from echo2.tasks.task import begin_episode
from tests.support import family_models, plugin_packages, tiny_model
from tests.support.tiny_model import TEXT

ANSWER = re.compile(r"^  the model (.*?)( \(cut after 8 tokens\))?: reward (\S+?)(, success)?$", re.MULTILINE)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tiny_model.OnDisk:
    return tiny_model.make(tmp_path_factory.mktemp("tried") / "model", eos_bias=0.5)


def tried(tiny: tiny_model.OnDisk, name: str, *words: str, exit_code: int = Exit.OK) -> str:
    command = ["task", "try", name, "--model", str(tiny.folder), "--weights", str(tiny.snapshot), *words]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == exit_code, result.output
    return result.output


GUESSES = ("--prompts", "2", "--answers", "6", "--limit", "8", "--split", "heldout")


@pytest.fixture(scope="module")
def guessed(tiny: tiny_model.OnDisk) -> str:
    return tried(tiny, "guess", *GUESSES)


@pytest.mark.slow
def test_each_answer_of_the_model_has_the_score_that_the_task_gives_it(guessed: str) -> None:
    rewards = list[float]()
    for index, shown in enumerate(guessed.split("\nheldout ")[1:]):
        answers = ANSWER.findall(shown)
        assert len(answers) == 6
        for said, _, reward, success in answers:
            episode = begin_episode(registry.get("guess", 1), "heldout", index, TEXT)
            for part in said.split(", then ")[0::2]:
                episode.reply(TEXT.encode(literal_eval(part)))
            score = episode.score()
            assert float(reward) == pytest.approx(score.reward, rel=1e-5)
            assert bool(success) == score.success
            rewards.append(score.reward)
    assert f"12 answers: mean reward {sum(rewards) / 12:.3g}, " in guessed


@pytest.mark.slow
def test_the_same_call_shows_the_same_answers(tiny: tiny_model.OnDisk, guessed: str) -> None:
    assert tried(tiny, "guess", *GUESSES) == guessed
    assert len({said for said, *_ in ANSWER.findall(guessed)}) > 1


@pytest.mark.slow
def test_a_model_gives_its_likeliest_answer_behind_its_chat_template(tmp_path: Path) -> None:
    qwen = family_models.make(tmp_path / "qwen", "qwen3")
    told = tried(
        qwen, "single_sum", "--prompts", "1", "--limit", "8", "--template", "chat", "--no-thinking", "--greedy"
    )
    assert "  | <|im_start|>user\n" in told
    assert "  | <|im_start|>assistant\n  | <think>\n  | \n  | </think>\n" in told
    assert len(ANSWER.findall(told)) == 1


@pytest.mark.slow
def test_an_answer_at_which_the_task_fails_says_why(
    tiny: tiny_model.OnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin_packages.install(tmp_path, monkeypatch, {"faulty": "tests.support.faulty_tasks:faulty"})
    words = ("--prompts", "1", "--answers", "1", "--limit", "8")
    told = tried(tiny, "faulty:not a number", *words, exit_code=Exit.CONFIG)
    assert re.search(r"  the model '.*'.* fails\n  the reward nan is no finite float32\n", told), told
    assert "echo2-coord: no answer of the model to 1 prompts has a score" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--answer", "7"], "--answer and --model are for two calls: leave out one of them"),
        (["--limit", "512"], "the model's context has 512 tokens, and an answer may have 512: lower --limit"),
        (["--weights", "missing"], "no weights at missing: name a safetensors file with a version of this model"),
        (["--weights", __file__], "cannot be loaded as weights of "),
        (["--thinking"], 'run.thinking is for the chat template: set run.template = "chat", or leave it unset'),
    ],
)
@pytest.mark.slow_for("words3-cannot be loaded as weights of ")
def test_each_mistake_is_one_sentence(tiny: tiny_model.OnDisk, words: list[str], said: str) -> None:
    usual = [] if "--weights" in words else ["--weights", str(tiny.snapshot)]
    result = CliRunner().invoke(cli.app, ["task", "try", "add", "--model", str(tiny.folder), *usual, *words])
    assert result.exit_code == Exit.CONFIG
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_model_is_answered_by_the_names_that_the_command_takes_and_no_other() -> None:
    """Before, it named tiny, and refused it."""
    unknown, tiny = (CliRunner().invoke(cli.app, ["task", "try", "add", "--model", name]) for name in ("nix", "tiny"))
    assert unknown.exit_code == tiny.exit_code == Exit.CONFIG
    assert unknown.stderr == (
        "echo2-coord: no model folder at nix: name smollm2, hf:ORG/NAME, RUN@VERSION, or a folder with config.json, "
        "tokenizer.json and a safetensors model\n"
    )
    assert "made by init, for its run" in tiny.stderr


def test_the_folder_of_a_run_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "run.spec").touch()
    result = CliRunner().invoke(cli.app, ["task", "try", "add", "--model", str(tmp_path)])
    assert result.exit_code == Exit.CONFIG
    assert f"{tmp_path} is the folder of a run: name {tmp_path}@VERSION" in result.stderr
