"""`python -m echo2.engines.process.host`: the child process that holds one engine. Used by nodes and the coordinator's
scorer.

torch is imported only when the first call asks for a device. By then the parent's environment is set, and output that a
library prints at import cannot reach the pipe.
"""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

from echo2.engines import registry
from echo2.engines.devices import nvidia_files
from echo2.engines.devices.devices import ComputeDevice, Inventory, NoDevice, choose
from echo2.engines.devices.memory_reserve import settle_reserve
from echo2.engines.devices.own_card import see_alone
from echo2.engines.engine import DTYPES, Engine, EngineError, EngineRows, SampledTurn, TellsProgress
from echo2.engines.process.messages import (
    CALLS,
    DEFERRED_CALLS,
    ROWS_NOTICE,
    SAMPLED_NOTICE,
    VERSION_CALLS,
    DutyCall,
    EngineCall,
    GenerateCall,
    InventoryCall,
    PackedScore,
    ProbeCall,
    Probed,
    ScoreCall,
)
from echo2.engines.process.score_queue import ScoreQueue
from echo2.engines.registry import SERVER, EngineRow
from echo2.engines.server.variables import VARIABLE
from echo2.runtime import child_network, priority
from echo2.runtime.child_budgets import confine
from echo2.runtime.child_pipe import Pipe
from echo2.runtime.hidden_folder import hide_named
from echo2.runtime.own_memory import keep_private
from echo2.runtime.priority import Priority

MOST_NAP: Final = 0.25
"""Seconds of rest after which calls are looked at."""
SIGN_SECONDS: Final = 30.0
"""Longest time without a notification while groups are generated or weights read, seconds: a parent takes silence for a
hang."""


class EngineHost:
    """The child's table of calls; each is run on one engine. The groups that it generates and scores are the pipe's
    `DeferredWork`: each step is one pass over groups to score, if any wait, and one token of all groups to generate.
    `notify`: called with the rows, as engines.process.messages says; `sampled`: called with each turn that waits for
    its answer. `confine`: keeps this process to an engine's budget, and returns the reason of what is missing."""

    calls: Mapping[str, Any] = {call.method: call for call in DEFERRED_CALLS}
    barriers: Collection[str] = frozenset({"probe", *(call.method for call in VERSION_CALLS)})

    def __init__(
        self,
        notify: Callable[[EngineRows], None] = lambda rows: None,
        sampled: Callable[[SampledTurn], None] = lambda sampled_turn: None,
        confine: Callable[[str], str] = lambda engine: "",
    ) -> None:
        self._engine: Engine | None = None
        self._notify, self._sampled, self._confine = notify, sampled, confine
        self._groups: set[int] = set()
        self._to_score = ScoreQueue()
        self._told: object = None
        self._told_at = 0.0
        self._duty, self._owed = 100, 0.0
        """Percent of the time to compute, and the seconds of rest that the steps so far owe."""

    def handlers(self) -> Mapping[str, tuple[Any, Callable[[Any], Any]]]:
        """Return the table for `Pipe.serve`."""
        calls: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {call.method: (call, self.run) for call in CALLS}
        return {
            "inventory": (InventoryCall, self.inventory), "probe": (ProbeCall, self.probe),
            "duty": (DutyCall, self.duty), **calls,
        }  # fmt: skip

    def duty(self, call: DutyCall) -> None:
        """Compute for this share of the time from now on."""
        self._duty, self._owed = call.percent, 0.0

    def inventory(self, call: InventoryCall) -> Inventory:
        """List the devices that an engine sees."""
        return registry.choose(call.engine).inventory()

    def probe(self, call: ProbeCall) -> Probed:
        """Make an engine. A second probe makes a new one; the weights of the old one are freed."""
        row = registry.choose(call.engine)
        row.check(call.dtype)
        alone = see_alone(call.device, row.alone, os.environ)
        device = _device_of(row, alone, call.device)
        kind = device.kind if alone == call.device else call.device
        settle_reserve(kind, os.environ)
        _give_way(device.kind)
        if missing := self._confine(row.name):
            print(f"the engine {row.name} is not kept from the network: {missing}", file=sys.stderr)
        self._engine = row.make(device.kind, call.dtype)
        if isinstance(self._engine, TellsProgress):
            self._engine.on_progress = self._sign
        engine_class = row.engine_class(device.kind, call.dtype)
        return Probed(
            kind=kind, name=device.name, why=device.why, engine_class=engine_class,
            dtypes=[one for one in DTYPES if one in row.dtypes], builds=row.builds(),
        )  # fmt: skip

    def run(self, call: EngineCall[Any]) -> Any:
        answer = call.run(self._chosen_engine())
        self._tell()
        return answer

    @property
    def rows(self) -> EngineRows:
        return self._chosen_engine().rows

    @property
    def under_way(self) -> Collection[int]:
        """The groups that have begun and are not answered."""
        return self._groups

    @property
    def idle(self) -> bool:
        """Whether all groups wait for answers to their turns."""
        return not self._to_score and self._all_parked

    @property
    def _all_parked(self) -> bool:
        return bool(self._groups) and self._chosen_engine().idle

    def begin(self, id: int, body: GenerateCall | ScoreCall) -> None:
        engine = self._chosen_engine()
        if isinstance(body, ScoreCall):
            return self._to_score.put(id, body.group())
        engine.begin(id, body.job)
        self._groups.add(id)
        self._tell()

    def cancel(self, id: int) -> None:
        """End a group without an answer."""
        self._to_score.cancel(id)
        self._chosen_engine().cancel(id)
        self._groups.discard(id)
        self._tell()

    def step(self) -> Iterable[tuple[int, object]]:
        """Score a pass of groups, and take all others one token further."""
        if self._to_score:
            for id, outcome in self._to_score.run_pass(self._chosen_engine()):
                yield id, outcome if isinstance(outcome, Exception) else [PackedScore.of(score) for score in outcome]
        if self._owed > 0.0:
            nap = min(self._owed, MOST_NAP)
            time.sleep(nap)  # calls are answered between two naps
            self._owed -= nap
        elif self._groups:
            began = time.monotonic()
            yield from self._generate()
            self._owed = (time.monotonic() - began) * (100 / self._duty - 1)

    def _generate(self) -> Iterable[tuple[int, object]]:
        """Take all groups one token further. An error of the engine ends them all."""
        engine = self._chosen_engine()
        try:
            ended = [(done.ticket, done.outcome) for done in engine.step()]
        except Exception as error:
            ended = [(id, error) for id in sorted(self._groups)]
            for id, _ in ended:
                engine.cancel(id)
        self._groups.difference_update(id for id, _ in ended)
        self._tell()
        return ended

    def _chosen_engine(self) -> Engine:
        if self._engine is None:
            raise EngineError("no engine is chosen yet: the first call must be probe")
        return self._engine

    def _sign(self) -> None:
        """Notify, at times, that a load goes on."""
        if time.monotonic() - self._told_at > SIGN_SECONDS:
            self._told, self._told_at = None, time.monotonic()
            self._notify(EngineRows())

    def _tell(self) -> None:
        """Notify of turns that wait, and of the rows where something changed that the parent acts on: tokens and single
        rows end too often."""
        for sampled_turn in self._chosen_engine().turns():
            self._sampled(sampled_turn)
        rows = self.rows
        state = (rows.limit, rows.waiting, rows.free > 0, tuple(sorted(self.under_way)), self._all_parked)
        if state != self._told or (self._groups and time.monotonic() - self._told_at > SIGN_SECONDS):
            self._told, self._told_at = state, time.monotonic()
            self._notify(rows)


def _device_of(row: EngineRow, alone: str, asked: str) -> ComputeDevice:
    """Choose the device. `alone`: its name in this process; `asked`: its name in the machine. Raises NoDevice."""
    available = row.inventory()
    if alone != asked and not available.gpus.get(asked.partition(":")[0]):
        raise NoDevice(f"{asked} does not exist: {available.unused or 'echo2-node gpu-check lists the cards'}")
    try:
        return choose(alone, available, row.devices)
    except NoDevice as error:
        raise NoDevice(str(error).replace(alone, asked)) from error


def _give_way(kind: str) -> None:
    """Give way as the node asks that started this process. `kind`: kind of the engine's device."""
    asked = cast(Priority, os.environ.get(priority.VARIABLE, "normal"))
    priority.give_way("low" if asked == "idle" and kind != "cpu" else asked)


def confinement(server: str) -> Callable[[str], str]:
    """Leave the system's network, before this process starts threads. Return what keeps it to an engine's budget.
    `server`: the address of a running server; where one is named the process stays, since its engine may need it."""
    missing = "the setting server keeps it in the system's network" if server else child_network.loopback()

    def confined(engine: str) -> str:
        return confine(engine, lambda: child_network.one_port(server) if engine == SERVER.name else missing)

    return confined


def main(make: type[EngineHost] = EngineHost) -> None:
    """Serve until the parent goes away. `make`: class of the host."""
    keep_private()
    nvidia_files.make()
    hide_named()
    confine = confinement(os.environ.get(VARIABLE, ""))
    pipe = Pipe()
    host = make(
        lambda rows: pipe.notify(ROWS_NOTICE, rows),
        lambda sampled_turn: pipe.notify(SAMPLED_NOTICE, sampled_turn),
        confine,
    )
    pipe.serve(host.handlers(), work=host)


if __name__ == "__main__":
    main()
