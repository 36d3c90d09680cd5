"""The command `echo2-node bench`: the rates of the engines on this machine with the run's own model.

Rules
1. Without a device, the rates are those by which `--gpu auto` chooses: kept ones, or with `again` new ones, which are
   kept.
2. With devices named, each is timed with the engine that the node runs on it, one after the other. Nothing is kept.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from echo2.engines.process.candidates import Trial, best, fleet_lines, lines
from echo2.engines.process.trials import run_trials
from echo2.engines.registry import AUTO_ENGINE
from echo2.node.config import NodeConfig
from echo2.node.engine_child import engine_child
from echo2.node.engine_choice import EngineChoice, EngineRecord, read_record, workload_of
from echo2.node.engine_devices import candidates_of
from echo2.node.errors import BadConfig, NoUsableDevice, TryLater
from echo2.node.home import invite_of_joined_run, lock_home, run_folder
from echo2.node.trust.trust_store import TrustStore
from echo2.node.versions.local_weights import LocalWeights
from echo2.p2p.discovery.invite import Invite
from echo2.protocol.authority import RunSpec
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import unix_milliseconds

T = TypeVar("T")


def bench(config: NodeConfig, *, again: bool, as_json: bool) -> list[str]:
    """Return the kept rates as lines of text; with `again`, time anew. Raises `NodeError`."""
    try:
        invite = invite_of_joined_run(config.home)
    except LocalFault as error:
        raise BadConfig(str(error)) from error
    if config.gpu != AUTO_ENGINE:
        if not again:
            raise BadConfig(f"only --gpu auto keeps rates: to time {config.gpu}, echo2-node bench --again")
        trials = _at_rest(config, invite, _each)
        return [_json(trials, None)] if as_json else fleet_lines(trials)
    record = _time_candidates(config, invite) if again else read_record(run_folder(config.home, invite.run))
    if record is None:
        raise TryLater(
            "no engine was timed for this run, as a node with a single candidate times none: stop the node, "
            "then echo2-node bench --again"
        )
    return [_json(record.trials, best(record.trials))] if as_json else lines(record.trials)


def _time_candidates(config: NodeConfig, invite: Invite) -> EngineRecord:
    """Time the candidates of `--gpu auto`, and keep the rates. Raises `NodeError`."""
    return _at_rest(config, invite, _choose_engine)


def _at_rest(config: NodeConfig, invite: Invite, measure: Callable[[NodeConfig, Path, Path, RunSpec], T]) -> T:
    """Call `measure` with the folders of the run and its weights, while no daemon runs in the home. Raises
    `NodeError`."""
    with lock_home(config.home):
        folder = run_folder(config.home, invite.run)
        runspec = TrustStore(folder / "trust", invite.run, invite.root_hash, unix_milliseconds()).trusted.runspec
        weights = LocalWeights(folder / "weights", quota=int(config.disk * 1e9))
        try:
            if runspec is None or weights.root() is None:
                raise TryLater("no version of the run's model is here yet: echo2-node run, until it works; then again")
            return measure(config, folder, weights.path, runspec.value)
        finally:
            weights.free_memory()


def _choose_engine(config: NodeConfig, folder: Path, weights: Path, runspec: RunSpec) -> EngineRecord:
    choice = EngineChoice(partial(engine_child, config), config, folder)
    asyncio.run(choice.choose(folder / "model", weights, runspec, again=True))
    if best(choice.trials) is None:
        why = "; ".join(lines(choice.trials)) or f"the run admits {', '.join(runspec.engines)} only"
        raise NoUsableDevice(f"no engine gave a rate: {why}")
    assert choice.record is not None
    return choice.record


def _each(config: NodeConfig, folder: Path, weights: Path, runspec: RunSpec) -> list[Trial]:
    make = partial(engine_child, config)

    async def timed() -> list[Trial]:
        ones = await candidates_of(config, make, runspec.compute_dtype)
        return await run_trials(make, ones, folder / "model", weights, workload_of(runspec), every=True)

    return asyncio.run(timed())


def _json(trials: Sequence[Trial], chosen: Trial | None) -> str:
    rows = [
        {
            "engine": one.candidate.engine, "dtype": one.candidate.dtype, "device": one.candidate.device,
            "hardware": one.candidate.hardware, "chosen": one is chosen, "reason": one.fault,
            "tokens_per_second": one.rate.per_second if one.rate is not None else None,
            "tokens_per_cpu_second": one.rate.per_cpu_second if one.rate is not None else None,
            "rows": one.rate.rows if one.rate is not None else None,
        }
        for one in trials
    ]  # fmt: skip
    return msgspec.json.encode(rows).decode()
