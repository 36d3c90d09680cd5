"""The demo's settings: valid for a coordinator, and checked options."""

import msgspec
import pytest

from echo2.coordinator.demo.demo_settings import (
    SMOLLM2,
    TINY_DEMO,
    DemoOptions,
    Model,
    run_name,
    settings_of,
)
from echo2.coordinator.environments.task_host import facts_of
from echo2.coordinator.run.admitted_classes import admitted_classes, check_admitted, closed_classes
from echo2.coordinator.run.first_model import default_warm_up
from echo2.coordinator.run.model_folder import task_named
from echo2.coordinator.run.setup import settings_for
from echo2.coordinator.run.task_processes import check_sizes
from echo2.coordinator.settings.config import parse
from echo2.engines.engine import Dtype
from echo2.runtime.errors import LocalFault
from echo2.weights.lora.adapter_folder import AdapterOrder


@pytest.mark.parametrize("settings", [TINY_DEMO, SMOLLM2], ids=["tiny", "smollm2"])
def test_a_coordinator_accepts_the_settings(settings: object) -> None:
    assert isinstance(settings, type(TINY_DEMO))
    flags = {"run": {"steps": settings.steps, **settings.run}, "learner": settings.learner}
    config = settings_for(settings.model, flags, env={})
    check_sizes(config, facts_of(task_named(config.run.task)))
    assert config.run.steps == settings.steps
    assert parse(flags, source="demo").run.task == settings.run["task"]


def test_a_task_with_a_long_path_still_has_a_name_that_a_coordinator_accepts() -> None:
    task = f"verifiers:/srv/{'long/' * 40}reverse_digits.toml"
    assert run_name(task) == "demo: verifiers:reverse_digits.toml"
    assert run_name("reverse") == "demo: reverse"
    assert parse({"run": {"name": run_name("gym:" + "+".join(["chain_sum"] * 20))}}, source="demo")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_run_admits_the_nodes_number_format_alone(dtype: Dtype) -> None:
    settings = settings_of(DemoOptions(dtype=dtype))
    config = settings_for(settings.model, {"run": dict(settings.run)}, env={})
    assert config.run.compute_dtype == dtype
    assert [one.name for one in admitted_classes(config.run)] == [f"transformers/{dtype}/cpu"]
    assert len(closed_classes(config.run)) == (dtype != "float32")
    unchanged = TINY_DEMO.run.keys() - {"compute_dtype", "engines"}
    assert {key: settings.run[key] for key in unchanged} == TINY_DEMO.run


@pytest.mark.parametrize(
    "options",
    [DemoOptions(nodes=0), DemoOptions(nodes=17), DemoOptions(seconds=0), DemoOptions(nodes=1, ways=True)],
)
def test_an_option_out_of_range_is_one_line(options: DemoOptions) -> None:
    with pytest.raises(LocalFault, match="choose"):
        settings_of(options)


def test_an_adapter_learns_at_ten_times_the_rate() -> None:
    adapted = settings_of(DemoOptions(adapter=AdapterOrder(16, 32.0)))
    assert adapted.learner["learning_rate"] == pytest.approx(10 * TINY_DEMO.learner["learning_rate"])
    assert adapted.adapter is not None


ENGINES = ("transformers/float32/cpu", "llamacpp/float32/vulkan", "vllm/float32/cpu")


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_with_engines_there_is_a_node_per_class_and_the_run_admits_these_alone(model: Model) -> None:
    chosen = settings_of(DemoOptions(model=model, engines=ENGINES))
    assert (chosen.nodes, chosen.engines, chosen.whole) == (3, ENGINES, False)
    config = settings_for(chosen.model, {"run": chosen.run, "learner": chosen.learner}, env={})
    assert config.run.engines == ENGINES
    check_admitted(config.run)


def test_with_engines_the_tiny_model_has_heads_that_vllm_takes() -> None:
    warm_up = msgspec.structs.replace(default_warm_up(), **settings_of(DemoOptions(engines=ENGINES)).warm_up)
    assert warm_up.shape == default_warm_up().shape | {"head_dim": 64}


@pytest.mark.parametrize(
    "options",
    [
        DemoOptions(engines=ENGINES, nodes=3), DemoOptions(engines=ENGINES, ways=True),
        DemoOptions(engines=ENGINES, adapter=AdapterOrder(16, 32.0)), DemoOptions(engines=ENGINES, dtype="float16"),
    ],
)  # fmt: skip
def test_engines_set_the_nodes_alone(options: DemoOptions) -> None:
    with pytest.raises(LocalFault, match="choose it without --nodes, --ways, --lora-rank and --dtype"):
        settings_of(options)


def test_a_task_that_the_volunteers_lack_is_played_turn_by_turn() -> None:
    settings = settings_of(DemoOptions(task="verifiers:/a.toml"))
    config = settings_for(settings.model, {"run": dict(settings.run)}, env={})
    assert (config.run.task, config.run.kind, settings.nodes) == ("verifiers:/a.toml", "served", 2)
    with pytest.raises(LocalFault, match="tiny model alone"):
        settings_of(DemoOptions(model="smollm2", task="verifiers:/a.toml"))
