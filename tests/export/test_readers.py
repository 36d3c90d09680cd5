"""An exported version continues texts with the same tokens in each program that people load models with.

`make test-export` sets up the environments; a program that is not here is skipped."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.learner.model import load as load_model
from echo2.weights.torch_io import save_model
from tests.support import exported_models, llama_cpp, published_versions
from tests.support.paths import ROOT
from tests.support.run_folders import NOW, make_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TEXTS: Final = (
    "Hello world! It's 12345 o'clock.", "def f(x):\n    return x**2\n", "你好世界。 Привет, Zürich 🙂",
    "<|eot_id|>The capital of <tool> is",
)  # fmt: skip
TOKENS: Final = 64
READERS: Final = ROOT / "tests" / "export" / "readers"


class Program(NamedTuple):
    """`python`: that has it. `gguf`: it reads the GGUF file."""

    python: Path
    script: str
    gguf: bool = False


PROGRAMS: Final = {
    "transformers 5": Program(Path(sys.executable), "transformers_reader.py"),
    "transformers 4": Program(ROOT / ".venv-transformers4/bin/python", "transformers_reader.py"),
    "vllm": Program(ROOT / ".venv-vllm/bin/python", "vllm_reader.py"),
    "llama.cpp": Program(Path(sys.executable), "llama_cpp_reader.py", gguf=True),
}


def continued(program: Program, model: Path) -> list[list[list[int]]]:
    """Return prompt and continuation of each of `TEXTS`."""
    command = [program.python, READERS / program.script, model]
    done = subprocess.run(
        command, input=json.dumps([TEXTS, TOKENS]), capture_output=True, text=True, cwd=model.parent, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=exported_models.MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the exported folder of a version whose weights are not the base's."""
    folder = tmp_path_factory.mktemp("run")
    exported_models.make(folder / "base", request.param)
    run = make_run(folder / "run", folder / "base")
    base = save_model(load_model(run.folder.model, "cpu"), folder / "base.snapshot")
    published_versions.publish(run, 3, published_versions.changed(base, folder / "3.snapshot"))
    return folder / "exported"


def export(exported: Path, *words: str) -> tuple[int, str]:
    """Run the command; return its exit code and what it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_options, "now", lambda: NOW)
        command = ["policy", "export", str(exported), "--home", str(exported.parent / "run"), *words]
        result = CliRunner().invoke(cli.app, command)
    return result.exit_code, result.output


def test_each_program_continues_the_texts_of_an_exported_version_alike(
    exported: Path, request: pytest.FixtureRequest
) -> None:
    known = exported_models.MODELS[request.node.callspec.params["exported"]].gguf
    code, said = export(exported, "--gguf")
    if not known:
        assert (code, exported.exists()) == (78, False)
        assert "no GGUF file of this model: the engine llamacpp knows models of type llama, qwen2, qwen3" in said
        code, said = export(exported)
    assert code == 0, said
    told = dict[str, list[list[list[int]]]]()
    for name, program in PROGRAMS.items():
        if (
            program.python.exists()
            and (known or not program.gguf)
            and not (program.gguf and llama_cpp.library.missing())
        ):
            told[name] = continued(program, exported / "a-run-v3.gguf" if program.gguf else exported)
    assert [len(made) for _, made in told["transformers 5"]] == [TOKENS] * len(TEXTS)
    assert {name: answers == told["transformers 5"] for name, answers in told.items()} == dict.fromkeys(told, True)
    left = [name for name, program in PROGRAMS.items() if name not in told and (known or not program.gguf)]
    if left:
        pytest.skip(f"alike: {', '.join(told)}; not here: {', '.join(left)} (make test-export)")
