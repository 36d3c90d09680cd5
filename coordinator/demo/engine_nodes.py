"""The nodes of `echo2-coord demo --engines`, each with an engine of its own.

1. There is one node per class, written engine/dtype/device. The run admits these classes and no others, and those that
   are not exact are calibrated before the coordinator starts.
2. Once the run has accepted a group of a node, its engine's process is killed without warning (SIGKILL) while the node
   works on a lease. It is killed again until a node's log tells of a lease that it generated a second time.
3. The demo may end when each node had `GROUPS_AFTER_KILL` more groups accepted after that, or, without faults, as many
   in all. A class of which no group was accepted is a shortcoming.
"""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from echo2.coordinator.metrics.views import NodeRow
from echo2.engines.registry import choose, parts_of
from echo2.protocol.engine_classes import parts
from echo2.runtime.errors import LocalFault

GROUPS_AFTER_KILL: Final = 4
"""Groups."""
_ENGINE: Final = "echo2.engines.process.host"
"""The module of an engine's process."""
_RECEIVED, _GENERATED, _AGAIN = "lease received", "group generated", "generating the lease again"
"""Events in a node's log."""


def classes_of(text: str) -> tuple[str, ...]:
    """Read the classes of the option `--engines`, separated by commas. Raises `LocalFault`."""
    classes = tuple(one.strip() for one in text.split(",") if one.strip())
    if not classes or len(set(classes)) < len(classes):
        raise LocalFault(f"--engines {text!r}: name each class once, as in transformers/float32/cpu,vllm/float32/cpu")
    for one in classes:
        _check(one)
    return classes


def node_name(engine_class: str) -> str:
    return engine_class.replace("/", "-")


def node_options(engine_class: str) -> list[str]:
    """Return the options of `echo2-node join` for a class. The log names each lease (rule 2)."""
    engine, dtype, device = parts(engine_class)
    return ["--engine", engine, "--dtype", dtype, "--gpu", device, "--log", "debug"]


def flaws(classes: Sequence[str], nodes: Iterable[NodeRow]) -> list[str]:
    """Return a sentence per class without accepted work (rule 3)."""
    productive = {node.name for node in nodes if node.accepted}
    return [f"no work was accepted from the node with {one}" for one in classes if node_name(one) not in productive]


@dataclass
class _Kill:
    """`accepted`: groups of the node then. `generated`: groups in its log at the last kill. `repeated`: whether its
    log tells of a lease that was generated again."""

    accepted: int
    generated: int
    repeated: bool = False


@dataclass
class EngineFaults:
    """The faults of rule 2. `classes`: classes of the nodes. `kills`: whether engines are killed. `pid`: returns the
    process id of a node by its name, `log` its log. `say`: shows a sentence."""

    classes: Sequence[str]
    kills: bool
    pid: Callable[[str], int]
    log: Callable[[str], Path]
    say: Callable[[str], None]
    _killed: dict[str, _Kill] = field(default_factory=dict)

    def act(self, nodes: Iterable[NodeRow]) -> None:
        """Kill the engines that are due."""
        for node in nodes:
            if self.kills and node.accepted and node.name in self._names():
                self._act_on(node)

    def waiting(self, nodes: Iterable[NodeRow]) -> list[str]:
        """Return the names of the nodes that have not done their part; empty: the demo may end (rule 3)."""
        accepted = {node.name: node.accepted for node in nodes}
        return [name for name in sorted(self._names()) if not self._is_done(name, accepted.get(name, 0))]

    def _is_done(self, name: str, accepted: int) -> bool:
        kill = self._killed.get(name)
        if kill is None:
            return not self.kills and accepted >= GROUPS_AFTER_KILL
        return kill.repeated and accepted >= kill.accepted + GROUPS_AFTER_KILL

    def _names(self) -> set[str]:
        return {node_name(one) for one in self.classes}

    def _act_on(self, node: NodeRow) -> None:
        kill = self._killed.get(node.name)
        if kill is not None and kill.repeated:
            return
        log = self.log(node.name).read_text(errors="replace")
        generated = log.count(_GENERATED)
        if kill is None:
            if self._kill(node, log):
                self._killed[node.name] = _Kill(node.accepted, generated)
        elif _AGAIN in log:
            kill.repeated = True
        elif generated > kill.generated and self._kill(node, log):  # the lease had ended just before
            kill.generated = generated

    def _kill(self, node: NodeRow, log: str) -> bool:
        """Kill a node's engine if it works on a lease; tell whether it did."""
        engine = engine_of(self.pid(node.name)) if in_mid_lease(log) else None
        if engine is None:
            return False
        self.say(f"the engine of {node.name} is killed (SIGKILL) in mid-lease, after {node.accepted} accepted groups")
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)
        return True


def in_mid_lease(log: str) -> bool:
    """Tell from a node's log whether it has a lease that is not generated yet."""
    return log.count(_RECEIVED) > log.count(_GENERATED)


def engine_of(pid: int) -> int | None:
    """Return the process id of the engine of a node's process; None: it has none now."""
    try:
        children = [child for child in psutil.Process(pid).children() if _ENGINE in child.cmdline()]
    except psutil.Error:
        return None
    return children[0].pid if children else None


def _check(engine_class: str) -> None:
    """Raises `LocalFault` for a class that this machine cannot compute in."""
    wanted = parts_of(engine_class)
    row = choose(wanted.engine)
    if wanted.device not in row.devices:
        raise LocalFault(f"{engine_class}: {row.name} computes on {', '.join(row.devices)}")
