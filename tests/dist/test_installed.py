"""The installed wheel, with what it declares and nothing else: imports, commands, a first accepted group, sizes."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.installations import Installation
from tests.support.paths import ROOT

PLACES: Final = ("bare", "with_torch", "light_lock", "whole_lock")
IMPORTS: Final = """
import importlib, json, pkgutil, sys
import echo2
lacking, faults = {}, {}
for module in pkgutil.walk_packages(echo2.__path__, "echo2."):
    if module.name.endswith(".__main__") or any(part in module.name for part in (".native.classes", ".other_python.")):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        lacking[module.name] = error.name.partition(".")[0]
    except ImportError as error:
        faults[module.name] = str(error)
print(json.dumps([lacking, faults, echo2.__file__]))
"""
OF_TORCH: Final = frozenset({"torch", "transformers"})
OF_VLLM: Final = frozenset({"vllm", "triton"})
OF_OTHER_EXTRAS: Final = OF_VLLM | frozenset(
    {"accelerate", "gguf", "reasoning_gym", "math_verify", "pyarrow", "pokerkit", "pyspiel", "verifiers"}
)
HEAVY: Final = ("torch", "transformers", "aiohttp", "echo2._libp2p", "numpy", "pydantic")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Installation:
    installation: Installation = request.getfixturevalue(request.param)
    return installation


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("bare", OF_TORCH | OF_OTHER_EXTRAS),
        ("with_torch", OF_OTHER_EXTRAS),
        ("light_lock", OF_TORCH | OF_OTHER_EXTRAS),
        ("whole_lock", OF_OTHER_EXTRAS),
    ],
)
def test_every_module_is_imported_but_for_those_of_extras_that_are_not_installed(
    name: str, extras: frozenset[str], request: pytest.FixtureRequest
) -> None:
    installation: Installation = request.getfixturevalue(name)
    lacking, faults, file = json.loads(installation.code(IMPORTS).splitlines()[-1])
    assert faults == {}
    assert set(lacking.values()) <= extras, lacking
    assert Path(file).is_relative_to(installation.venv)


def test_pip_finds_no_conflict(place: Installation) -> None:
    assert place.check("python", "-m", "pip", "check").strip() == "No broken requirements found."


@pytest.mark.parametrize("program", ["echo2-node", "echo2-coord"])
def test_help_and_version_work_beside_files_that_have_our_names(place: Installation, program: str) -> None:
    assert "Usage:" in place.check(program, "--help")
    assert re.match(r"echo2 0\.1\.0, protocol ", place.check(program, "version"))


@pytest.mark.parametrize("program", ["node", "coordinator"])
def test_help_loads_no_heavy_library(bare: Installation, program: str) -> None:
    code = (
        f"import sys; sys.argv = ['echo2', '--help']\nimport echo2.{program}.cli as cli\ntry: cli.main()\n"
        f"except SystemExit: pass\nprint('loaded:', *[one for one in {HEAVY!r} if one in sys.modules])"
    )
    assert bare.code(code).splitlines()[-1].split() == ["loaded:"]


def test_the_doctors_find_nothing_that_keeps_them_from_working(place: Installation) -> None:
    rows = json.loads(place.check("echo2-node", "doctor", "--json"))
    assert not [row for row in rows if row["verdict"] == "bad"]


def test_a_run_without_pytorch_is_refused_in_one_sentence_with_the_command(bare: Installation) -> None:
    done = bare.run("echo2-coord", "init", str(bare.folder / "run"), "--model", "tiny", "--yes")
    assert done.returncode == 78
    assert re.fullmatch(
        r"echo2-coord: the learner needs PyTorch, which this installation of echo2 lacks \(torch, transformers\): "
        r"\S+ -m pip install .*/dist/echo2-0\.1\.0-\S*\.whl\[train\]'?\n",
        done.stdout,
    ), done.stdout
    assert not (bare.folder / "run").exists()


@pytest.mark.parametrize(
    "command", ["redteam", "redteam --help", "simulate --nodes 8", "market simulate", "demo --pay"]
)
def test_a_command_whose_code_is_in_the_checkout_says_so_in_one_sentence(bare: Installation, command: str) -> None:
    """The hostile folder has a package of the name by which a checkout has it."""
    done = bare.run("echo2-coord", *command.split())
    assert done.returncode == 78
    name = re.sub(r" --(help|nodes 8)", "", command)
    assert done.stdout == (
        f"echo2-coord: `echo2-coord {name}` needs a checkout of echo2, since the wheel leaves benchmarks/ out: "
        f"run `make setup` in a checkout, then `.venv/bin/echo2-coord {name}` there\n"
    )


def test_a_group_is_accepted_from_a_node_that_computes_by_pytorch(with_torch: Installation, invite: str) -> None:
    assert with_torch.accepted(invite, "--gpu", "cpu", "--engine", "transformers")["state"] == "accepted"


def test_a_group_is_accepted_from_a_node_without_pytorch(bare: Installation, invite: str) -> None:
    assert bare.accepted(invite)["state"] == "accepted"


@pytest.mark.parametrize("name", ["light_lock", "whole_lock"])
def test_a_group_is_accepted_from_a_node_of_a_lock(name: str, invite: str, request: pytest.FixtureRequest) -> None:
    installation: Installation = request.getfixturevalue(name)
    assert installation.accepted(invite, "--gpu", "cpu")["state"] == "accepted"


def test_sizes_are_within_their_bounds_and_those_that_the_readme_states(
    bare: Installation, with_torch: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = bare.size() / 1e6, with_torch.size() / 1e6
    with capsys.disabled():
        print(f"\ninstalled: bare {small:.0f} MB, with torch {large:.0f} MB")
    assert small <= 250
    assert large <= 1300
    stated = [int(number) for number in re.findall(r"(\d+) MB installed", (ROOT / "README.md").read_text())]
    assert len(stated) == 2
    assert stated == [pytest.approx(small, rel=0.05), pytest.approx(large, rel=0.05)]
