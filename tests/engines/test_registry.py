"""Engines by name: a toy one is added through the public registry, and does everything that an engine does."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.plays.direct import generate
from echo2.engines import registry
from echo2.engines.engine import Job
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import (
    TRANSFORMERS,
    UnknownEngine,
    choose,
    engine_names,
    find,
    in_16_bits,
    is_exact,
    register,
    rounding_of,
)
from echo2.engines.temperature import rule_of
from echo2.runtime.child import ChildError
from tests.support.bigram import BigramEngine, random_table, write_table
from tests.support.paths import ROOT

TOY_HOST = "tests.support.toy_engine"


def job() -> Job:
    return Job(
        prompt=[2, 3], seeds=[bytes([n]) * 16 for n in range(3)], limit=6, eos=1, task="reverse", task_version=1,
        split="train", index=0,
    )  # fmt: skip


async def test_an_engine_is_one_module_and_one_row(tmp_path: Path) -> None:
    snapshot = write_table(tmp_path / "table.safetensors", random_table(3))
    here = BigramEngine()
    here.load(tmp_path, snapshot.path)
    async with EngineProcess(module=TOY_HOST) as engine:
        probed = await engine.probe("auto", engine="toy")
        assert (probed.engine_class, probed.hardware) == ("toy/float32/cpu", "a processor")
        assert probed.sentence() == "generating on a processor (toy/float32/cpu): no GPU found"
        assert (await engine.load(tmp_path, snapshot.path)).root == snapshot.root
        assert await engine.generate(job()) == generate(here, job())


REFUSED = {
    "a device of a kind that it does not compute on": ({"device": "cuda", "engine": "toy"}, "does not compute on cuda"),
    "a type that it does not compute in": (
        {"dtype": "bfloat16", "engine": "toy"},
        "cannot compute in bfloat16: use float",
    ),
    "a name that is none": (
        {"engine": "abacus"},
        "engine abacus is not in this build, which has transformers, llamacpp, vllm, server, toy",
    ),
}


@pytest.mark.parametrize(("asked", "sentence"), REFUSED.values(), ids=REFUSED.keys())
async def test_an_engine_is_given_nothing_that_its_row_does_not_name(asked: dict[str, str], sentence: str) -> None:
    async with EngineProcess(module=TOY_HOST) as engine:
        with pytest.raises(ChildError, match=sentence):
            await engine.probe(**asked)  # type: ignore[arg-type]
        assert engine.probed is None


def test_auto_takes_the_first_engine_whose_packages_are_here() -> None:
    assert choose() is choose("auto") is choose("transformers") is TRANSFORMERS


def test_an_engine_whose_packages_are_missing_is_named_with_the_command_that_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = replace(TRANSFORMERS, packages=("torch", "no_such_package"), extra="", install="pip install no-such-package")
    assert row.missing() == ["no_such_package"]
    monkeypatch.setattr(registry, "_ROWS", {row.name: row})
    for asked in ("auto", "transformers"):
        with pytest.raises(UnknownEngine, match="transformers needs no_such_package: pip install no-such-package"):
            choose(asked)
    second = replace(TRANSFORMERS, name="second")
    register(second)
    assert choose("auto") is second
    assert engine_names() == ["transformers", "second"]


def test_an_engine_of_an_extra_is_named_with_the_command_that_adds_it_to_this_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = replace(TRANSFORMERS, packages=("no_such_package",))
    monkeypatch.setattr(registry, "_ROWS", {lacking.name: lacking})
    wanted = rf"transformers needs no_such_package: .*install .*{re.escape(str(ROOT))}\[torch\]'?"
    assert re.fullmatch(wanted, registry.remedy_for(["llamacpp/float32", "transformers/float32/cpu"]))
    assert registry.remedy_for(["llamacpp/float32"]) == ""


@pytest.mark.parametrize("name", ["transformers", "auto", "", "llama/cpp"])
def test_a_name_is_given_once_and_is_one_part_of_an_engine_class(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        register(replace(TRANSFORMERS, name=name))


def test_the_engine_that_scores_has_both_rules_and_a_server_the_first_alone() -> None:
    assert TRANSFORMERS.sampling == ("gumbel-splitmix64/1", "gumbel-splitmix64/2")
    assert [rule_of(temperature) for temperature in (1000, 800)] == list(TRANSFORMERS.sampling)
    assert registry.fault_of_sampling("server", "gumbel-splitmix64/1") == ""
    assert registry.fault_of_sampling("server", "gumbel-splitmix64/2") == (
        "the run chooses tokens by the rule gumbel-splitmix64/2, which the engine server has not: use transformers, "
        "llamacpp, vllm"
    )
    assert registry.fault_of_sampling("llamacpp", "dice/7") == (
        "the run chooses tokens by the rule dice/7, which this build has not: update echo2"
    )


@pytest.mark.parametrize(
    ("engine_class", "exact"),
    [
        ("transformers/float32/cpu", True),
        ("transformers/float32/cuda", True),
        ("transformers/bfloat16/cpu", False),
        ("llamacpp/float32/cpu", True),
        ("llamacpp/float32/vulkan", False),
        ("llamacpp/float32", False),
        ("llamacpp/float16/cpu", False),
        ("another/float32/cpu", True),
        ("another/float16/cpu", False),
        ("transformers/float321/cpu", False),
        ("bfloat16", False),
    ],
)
def test_the_row_of_an_engine_says_which_of_its_classes_are_exact(engine_class: str, exact: bool) -> None:
    assert is_exact(engine_class) == exact


def test_a_row_is_found_whether_its_packages_are_here_or_not() -> None:
    assert find("transformers") is TRANSFORMERS
    assert find("abacus") is None


def test_the_builds_of_an_engine_are_those_of_its_packages_or_its_own() -> None:
    named = replace(TRANSFORMERS, packages=("numpy", "no_such_package")).builds()
    assert [one.split()[0] for one in named] == ["numpy", "no_such_package"]
    assert replace(TRANSFORMERS, built="tests.engines.test_registry:own_builds").builds() == ["build 7"]


def own_builds() -> list[str]:
    return ["build 7"]


def test_only_llama_cpp_computes_with_a_quantised_base_as_it_is_stored() -> None:
    """A run cannot admit vllm/blocks: no node could compute in it."""
    assert [name for name in engine_names() if "blocks" in row_of(name).dtypes] == ["llamacpp"]


def row_of(name: str) -> registry.EngineRow:
    row = find(name)
    assert row is not None
    return row


def test_formats_of_16_bits_are_known_by_class_and_by_rounding() -> None:
    classes = ["transformers/bfloat16/cpu", "vllm/float16/cuda", "llamacpp/bfloat16/vulkan"]
    assert all(in_16_bits(one) and in_16_bits(rounding_of(one)) for one in classes)
    others = ["", "transformers/float32/cpu", "llamacpp/float32/vulkan", "llamacpp/blocks/vulkan", "float32", "blocks"]
    assert not any(in_16_bits(one) or in_16_bits(rounding_of(one)) for one in others)
