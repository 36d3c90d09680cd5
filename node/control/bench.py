"""The command `echo2-node bench`: the rates of the engines on this machine with the run's own model."""

import asyncio
from functools import partial

import msgspec

from engines.candidates import best, lines
from node.config import NodeConfig
from node.engine_child import engine_child
from node.engine_choice import EngineChoice, EngineRecord, read_record
from node.errors import BadConfig, NoUsableDevice, TryLater
from node.home import joined, locked, run_folder
from node.trust.trust_store import TrustStore
from node.versions.local_weights import LocalWeights
from p2p.discovery.invite import Invite
from runtime.errors import LocalFault
from runtime.units import unix_milliseconds


def bench(config: NodeConfig, *, again: bool, as_json: bool) -> list[str]:
    """Return the kept rates as lines of text; with `again`, time anew. Raises `NodeError`."""
    try:
        invite = joined(config.home)
    except LocalFault as error:
        raise BadConfig(str(error)) from error
    record = _timed(config, invite) if again else read_record(run_folder(config.home, invite.run))
    if record is None:
        raise TryLater("no engine was timed for this run: echo2-node bench --again")
    return [_json(record)] if as_json else lines(record.trials)


def _timed(config: NodeConfig, invite: Invite) -> EngineRecord:
    """Time the candidates, while no daemon runs in the home. Raises `NodeError`."""
    with locked(config.home):
        folder = run_folder(config.home, invite.run)
        runspec = TrustStore(folder / "trust", invite.run, invite.root_hash, unix_milliseconds()).trusted.runspec
        weights = LocalWeights(folder / "weights", quota=int(config.disk * 1e9))
        if runspec is None or weights.root() is None:
            raise TryLater("no version of the run's model is here yet: echo2-node run, until it works; then again")
        choice = EngineChoice(partial(engine_child, config), config, folder)
        asyncio.run(choice.choose(folder / "model", weights.path, runspec.value, again=True))
    if best(choice.trials) is None:
        why = "; ".join(lines(choice.trials)) or f"the run admits {', '.join(runspec.value.engines)} only"
        raise NoUsableDevice(f"no engine gave a rate: {why}")
    assert choice.record is not None
    return choice.record


def _json(record: EngineRecord) -> str:
    chosen = best(record.trials)
    rows = [
        {
            "engine": one.candidate.engine, "dtype": one.candidate.dtype, "device": one.candidate.device,
            "hardware": one.candidate.hardware, "chosen": one is chosen, "reason": one.fault,
            "tokens_per_second": one.rate.per_second if one.rate is not None else None,
            "tokens_per_cpu_second": one.rate.per_cpu_second if one.rate is not None else None,
            "rows": one.rate.rows if one.rate is not None else None,
        }
        for one in record.trials
    ]  # fmt: skip
    return msgspec.json.encode(rows).decode()
