"""Models of four families on each engine that is installed here: every one of their end tokens ends an answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.plays import direct
from echo2.coordinator.run import chat_settings, model_folder
from echo2.coordinator.settings.training_config import RunSection
from echo2.engines.engine import Engine, Job
from echo2.engines.llamacpp import architectures
from echo2.engines.llamacpp.engine import create
from echo2.engines.transformers.engine import TransformersEngine
from echo2.protocol.task_kinds import SINGLE_KIND
from echo2.tasks.chat import ChatTokenizer
from echo2.tasks.tokenizer import load
from tests.support import family_models, llama_cpp
from tests.support.chat_families import FAMILIES, end_ids
from tests.support.tiny_model import OnDisk

LIMIT, GROUPS, SAMPLES = 40, 4, 16
DRIFT = 5e-5
ENGINES: dict[str, Callable[[], Engine]] = {
    "transformers": TransformersEngine,
    "llamacpp": lambda: create("cpu", "float32"),
}


def jobs(model: OnDisk) -> list[Job]:
    """Return jobs of one turn, whose prompts the model's own template writes."""
    facts = model_folder.facts(model.folder)
    settings = chat_settings.settings_of(model.folder, RunSection(template="chat"), SINGLE_KIND)
    assert settings is not None
    text = ChatTokenizer(load(model.folder / "tokenizer.json", facts.eos, *facts.other_ends), settings)
    return [
        Job(
            prompt=text.pose([{"role": "user", "content": f"{index} + 2?"}]),
            seeds=[b"seed" + (100 * index + sample).to_bytes(12, "little") for sample in range(SAMPLES)],
            limit=LIMIT, eos=facts.eos, other_ends=facts.other_ends, single_turn=True, task="none", task_version=1,
            split="train", index=index,
        )
        for index in range(GROUPS)
    ]  # fmt: skip


@pytest.mark.parametrize("engine", [
    "transformers", pytest.param("llamacpp", marks=llama_cpp.needed),
])  # fmt: skip
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow_but("gemma3-llamacpp", "llama3-llamacpp")
def test_each_end_of_a_family_ends_answers_and_the_scorer_agrees(name: str, engine: str, tmp_path: Path) -> None:
    model = family_models.make(tmp_path / "model", name)
    kind = model.model.config.model_type
    if engine == "llamacpp" and kind not in architectures.KNOWN_MODEL_TYPES:
        pytest.skip(f"llama.cpp's engine does not know {kind}")
    made_engine, scorer = ENGINES[engine](), TransformersEngine()
    for one in (made_engine, scorer):
        one.load(model.folder, model.snapshot)
    ends, ended, cut = end_ids(FAMILIES[name]), set[int](), 0
    asked = jobs(model)
    for job, samples in zip(asked, direct.generate_all(made_engine, asked), strict=True):
        for sample, score in zip(samples, scorer.score(job, samples), strict=True):
            assert not set(sample.tokens[:-1]) & set(ends)
            assert sample.turns == [len(sample.tokens)]
            if sample.tokens[-1] in ends:
                ended.add(sample.tokens[-1])
            else:
                cut += 1
                assert len(sample.tokens) == LIMIT
            assert max(score.margins) == 0.0
            assert sample.logprobs == pytest.approx(score.logprobs, abs=DRIFT)
    assert ended == set(ends)
    assert cut < GROUPS * SAMPLES // 4
