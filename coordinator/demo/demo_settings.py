"""Settings of the demo, one frozen object per model. benchmarks/learning.py measures how such settings learn."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from echo2.coordinator.verification.calibration import TOKENS_LEAST
from echo2.engines.engine import Dtype
from echo2.p2p.multiaddr import Route
from echo2.runtime.errors import LocalFault
from echo2.weights.lora.adapter_folder import AdapterOrder

Model = Literal["tiny", "smollm2"]
Mode = Literal["async", "sequential"]
NARROW_ROUTES: Final[tuple[Route, ...]] = ("relay", "https")
"""Routes of the last two nodes if `DemoOptions.ways` is set."""
_NAME: Final = 80
"""Most characters of `run.name`."""


@dataclass(frozen=True)
class DemoOptions:
    """The user's options. `nodes`, `seconds`: None means the model's preset. `seed`: seed of the model and the
    learner. `keep`: keep the folder. `faults`: kill one node and let another join late. `ways`: ways of the last two
    nodes, one is behind a relay and one connects over HTTPS only. `adapter`: train it, the model frozen; None: the
    whole model. `dtype`: the number format in which the nodes compute. `engines`: engine classes, one node each
    (coordinator/demo/engine_nodes.py); empty: transformers in all nodes. `task`: task to learn instead of the model's
    own, by nodes that lack its code. `mode`: run.mode; sequential: the nodes generate while the learner waits.
    `market`: the run pays by a market, in which each node has another ask. `pay`: so it does, and the demo ends once a
    simulated provider has paid (benchmarks/payments/pay_trial.py)."""

    model: Model = "tiny"
    nodes: int | None = None
    seconds: float | None = None
    seed: int = 0
    keep: bool = False
    faults: bool = True
    ways: bool = False
    adapter: AdapterOrder | None = None
    dtype: Dtype = "float32"
    engines: tuple[str, ...] = ()
    task: str | None = None
    mode: Mode = "async"
    market: bool = False
    pay: bool = False


@dataclass(frozen=True)
class DemoSettings:
    """The settings of a demo. `seconds`: limit for the run after set-up. `whole`: all `steps` must be made within
    that limit; if False, the demo ends at the limit. `run`, `learner`: sections of coordinator.settings.config, merged
    over the model's presets. `warm_up`: fields of the warm-up (coordinator.learner.messages.WarmUp) that differ from
    the default. `join_at`, `kill_at`: shares of the steps. `least_rise`, `least_greedy_rise`: required rise of held-out
    accuracy, sampled and greedy; None: no rise is required. `ways`, `adapter`, `engines`, `market`, `pay`:
    see `DemoOptions`. `calibrate`: calibrate the nodes' classes when the run is made. `more`: further sections of
    coordinator.toml."""

    model: Model
    nodes: int
    seconds: float
    steps: int
    whole: bool
    run: Mapping[str, Any]
    learner: Mapping[str, Any]
    warm_up: Mapping[str, Any]
    join_at: float = 0.25
    kill_at: float = 0.5
    least_rise: float | None = 0.10
    least_greedy_rise: float | None = None
    ways: bool = False
    adapter: AdapterOrder | None = None
    calibrate: bool = True
    engines: tuple[str, ...] = ()
    market: bool = False
    pay: bool = False
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


TINY_DEMO: Final = DemoSettings(
    model="tiny",
    nodes=3,
    seconds=180,
    steps=40,
    whole=True,
    run={
        "task": "reverse", "staleness": 4, "group_size": 16, "batch_groups": 16, "limit": 6,
        "heldout": 512, "evaluate_every": 8,
    },
    learner={"learning_rate": 3e-4, "warmup_steps": 5},
    # 7 in 10 demonstrations leave the digits in their order. The greedy policy starts with that mistake, and only the
    # reward shows which of the two answers is right.
    warm_up={"steps": 250, "noise": 0.1, "slip": 0.7},
    least_rise=0.30,
    least_greedy_rise=0.30,
)  # fmt: skip
SMOLLM2: Final = DemoSettings(
    model="smollm2",
    nodes=2,
    seconds=900,
    steps=24,
    whole=False,
    run={"task": "single_sum", "staleness": 4, "group_size": 8, "batch_groups": 4, "limit": 6,
         "heldout": 52, "evaluate_every": 4},
    learner={"learning_rate": 2e-5, "warmup_steps": 2},
    warm_up={},
)  # fmt: skip
OTHER_TASK: Final[Mapping[str, Any]] = {
    "group_size": 8, "batch_groups": 8, "limit": 8, "evaluate_every": 10, "kind": "served",
}  # fmt: skip
OTHER_TASK_SECONDS: Final = 600.0
"""Settings of a demo with `DemoOptions.task`: its episodes cost more than those of a task of this build."""
ADAPTER_RATE: Final = 10.0
"""An adapter's learning rate, over that of the whole model (ADR 15)."""
WIDE_HEADS: Final[Mapping[str, int]] = {
    "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 288,
}  # fmt: skip
"""The tiny model's shape if `DemoOptions.engines` is set: vLLM's attention on a CPU takes heads of 32 and more."""
ENGINES_SECONDS: Final = 600.0
"""The limit of a demo with `engines`, which ends by itself once each node has done its part."""
ENGINES_LEASE: Final = 300.0
"""The shortest life of a lease then, seconds: a killed vLLM took 53 s to start again on a busy machine."""
MARKET: Final[Mapping[str, Any]] = {
    "enabled": True, "reserve": "0.01", "budget": "5", "epoch_seconds": 6, "asks_seconds": 2,
    "least_need": 20_000, "owner_cap": 1000, "run_off_seconds": 30,
}  # fmt: skip
"""Epochs of seconds. The highest price leaves out the node with the last one of `ASKS`."""
ASKS: Final = ("10/h", "12/h", "16/h", "4000/h")
PAY_SECONDS: Final = 420.0
"""The limit of a demo with `pay`, which ends by itself once it has paid."""
SLOW_LEARNER: Final[Mapping[str, Any]] = {"microbatch_tokens": 48, "kl_coefficient": 0.001, "kl_groups": "all"}
"""With `pay` the learner takes more time per step, so that fewer nodes than all are enough for it."""
_BY_MODEL: Final[Mapping[Model, DemoSettings]] = {"tiny": TINY_DEMO, "smollm2": SMOLLM2}


def run_name(task: str) -> str:
    """Return the name of a demo's run. A path in the task is named by its last part, and the name has an end."""
    name = re.sub(r"[^:\s,=]*/", "", task)
    return f"demo: {name}"[:_NAME]


def settings_of(options: DemoOptions) -> DemoSettings:
    """Return the settings of a model with the user's options. Raises `LocalFault` if an option is out of range."""
    preset = _BY_MODEL[options.model]
    market = options.market or options.pay
    usual = len(ASKS) if market else preset.nodes
    nodes = usual if options.nodes is None else options.nodes
    seconds = preset.seconds if options.seconds is None else options.seconds
    if not 1 <= nodes <= 16:
        raise LocalFault(f"{nodes} nodes: choose 1 to 16 with --nodes")
    if options.ways and nodes < len(NARROW_ROUTES):
        raise LocalFault(
            f"{nodes} nodes: choose {len(NARROW_ROUTES)} to 16 with --nodes, as --ways needs {len(NARROW_ROUTES)}"
        )
    if not seconds > 0:
        raise LocalFault(f"{seconds:g} seconds: choose more than 0 with --seconds")
    chosen: dict[str, Any] = {"nodes": nodes, "seconds": seconds, "ways": options.ways, "adapter": options.adapter}
    if market and (options.model != "tiny" or options.engines or options.task is not None):
        raise LocalFault("--market and --pay are for the tiny model and its own task alone")
    chosen |= {"market": market}
    chosen["run"] = {**preset.run, "compute_dtype": options.dtype, "engines": [f"transformers/{options.dtype}/cpu"]}
    if options.mode == "sequential":
        chosen["run"] = {**chosen["run"], "mode": "sequential", "staleness": 0}
    if options.adapter is not None:
        chosen["learner"] = {**preset.learner, "learning_rate": ADAPTER_RATE * preset.learner["learning_rate"]}
    if options.task is not None:
        chosen |= _with_task(options, preset, chosen)
    if options.engines:
        chosen |= _with_engines(options, preset, chosen)
    if options.pay:
        chosen |= _with_pay(options, preset, chosen)
    return DemoSettings(**{**vars(preset), **chosen})


def sections_of(settings: DemoSettings, seed: int) -> dict[str, dict[str, Any]]:
    """Return the sections of coordinator.toml that differ from the defaults. `seed`: seed of the learner."""
    lease: dict[str, Any] = {"minimum_seconds": ENGINES_LEASE} if settings.engines else {}
    money = {"market": dict(MARKET), "payout": {"rail": "csv"}} if settings.market else {}
    return {
        "run": {"name": run_name(settings.run["task"]), "steps": settings.steps, **settings.run},
        "learner": {"seed": seed, **settings.learner},
        "network": {"listen": ["/ip4/127.0.0.1/tcp/0"]},
        "https": {"listen": ["/ip4/127.0.0.1/tcp/0"]},
        "calibration": {"tokens": TOKENS_LEAST},
        "leases": lease,
        **money,
        **{name: dict(section) for name, section in settings.more.items()},
    }


def _with_task(options: DemoOptions, preset: DemoSettings, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ with another task. Raises `LocalFault`."""
    if options.model != "tiny" or options.engines:
        raise LocalFault("--task is for the tiny model alone: choose it without --model and --engines")
    usual = {key: value for key, value in chosen["run"].items() if key != "heldout"}  # as the task has
    return {
        "run": {**usual, **OTHER_TASK, "task": options.task},
        "seconds": OTHER_TASK_SECONDS if options.seconds is None else options.seconds,
        "nodes": 2 if options.nodes is None else options.nodes,
        "least_rise": 0.05,
        "least_greedy_rise": None,
    }


def _with_engines(options: DemoOptions, preset: DemoSettings, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ with one node per engine class. Raises `LocalFault`."""
    if options.nodes is not None or options.ways or options.adapter is not None or options.dtype != "float32":
        raise LocalFault("--engines sets the nodes: choose it without --nodes, --ways, --lora-rank and --dtype")
    return {
        "engines": options.engines,
        "nodes": len(options.engines),
        "seconds": ENGINES_SECONDS if options.seconds is None else options.seconds,
        "steps": 1000,  # more than the limit allows
        "whole": False,
        "run": {**chosen["run"], "engines": list(options.engines)},
        "warm_up": {**preset.warm_up, "shape": dict(WIDE_HEADS)} if options.model == "tiny" else preset.warm_up,
        "least_rise": None,
        "least_greedy_rise": None,
    }


def _with_pay(options: DemoOptions, preset: DemoSettings, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ with payments."""
    return {
        "pay": True,
        "seconds": PAY_SECONDS if options.seconds is None else options.seconds,
        "steps": 1000,  # more than the limit allows
        "whole": False,
        "learner": {**chosen.get("learner", preset.learner), **SLOW_LEARNER},
        "join_at": 0.004,
        "kill_at": 0.03,
        "least_rise": None,
        "least_greedy_rise": None,
    }
