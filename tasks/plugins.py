"""Tasks that the registry lacks: the operator's plug-ins, and ours that need a library of an extra.

Rules
1. A name is FAMILY or FAMILY:ARGUMENT. The family decides who makes the task; the argument is the family's own.
2. Families are looked for in this order: tasks of this build, ours with an extra (`OWN_PLUGINS`), then the entry points
   of the group `echo2.tasks` of all installed packages. A plug-in never replaces a task of ours, and where two packages
   bring one family, neither is taken.
3. An entry point names a task, or a function from the argument (a text, empty without one) to a task. The task's name
   is the whole name that was asked for, and its version a whole number of at least 1.
4. A plug-in is imported only by `find`. Volunteers' nodes and the coordinator's main process never call it: foreign
   code is imported by the processes of an environment, and by commands that the operator gives by hand.
"""

import contextlib
import difflib
import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple

from echo2.runtime.installation import command_adding
from echo2.tasks import registry
from echo2.tasks.task import Task
from echo2.tasks.verifiers import taskset_file

GROUP: Final = "echo2.tasks"
OWN_PLUGINS: Final[Mapping[str, tuple[str, str]]] = {
    "gym": ("echo2.tasks.gym.gym_task:task", "gym"),
    "math": ("echo2.tasks.math.math_task:task", "math"),
    "poker": ("echo2.tasks.poker.poker_task:task", "poker"),
    "verifiers": ("echo2.tasks.verifiers.verifiers_task:task", ""),
}
"""Family -> (where its function stands, as in an entry point; the extra that it needs, empty without one)."""
_LIBRARY: Final[Mapping[str, str]] = {"gym": "reasoning_gym", "math": "math_verify", "poker": "pokerkit"}
"""The module of each extra that tells whether it is installed; it is looked for, not imported."""
LOOPBACK: Final = frozenset({"verifiers"})
"""Families that start processes of their own and speak with them by sockets."""


class PluginFault(LookupError):
    """A task cannot be had: no such name, two of it, or a plug-in that does not work. The message says why."""


class Family(NamedTuple):
    """A name that `find` knows. `source`: this build, an extra of ours, or the package that brings it. `lacks`: what
    has to be done before it can be opened; empty: nothing that is known."""

    name: str
    source: str
    lacks: str = ""


def families() -> list[Family]:
    """Return all families, sorted, without importing any."""
    own = [Family(name, "this build") for name in {name for name, _ in registry.list_tasks()}]
    extra = [
        Family(name, f"echo2[{needed}]" if needed else "this build", _lacks(name))
        for name, (_, needed) in OWN_PLUGINS.items()
    ]
    return sorted([*own, *extra, *(Family(point.name, _package(point)) for point in _installed_points(None))])


def find(name: str, version: int | None = None, points: Iterable[EntryPoint] | None = None) -> Task:
    """Return a task by its name; `version` None: the newest. Raises `PluginFault`, `registry.UnknownTask`."""
    family, colon, argument = name.partition(":")
    if colon and not argument:
        raise PluginFault(f"{name} has nothing behind its colon: name {family}, or {family}:ARGUMENT")
    point = _point(family, [one for one in _installed_points(points) if one.name == family])
    if point is None:
        return _of_this_build(name, version)
    return _open_task(point, name, argument, version)


def files_of(name: str) -> list[str]:
    """Return the files and folders that a task needs beside the installed packages, without importing its plug-in: the
    place of its package, which may be a checkout, and what its argument names, with the targets of links in it."""
    family, _, argument = name.partition(":")
    points = [point for point in _installed_points(None) if point.name == family]
    specs = filter(None, (importlib.util.find_spec(point.module.partition(".")[0]) for point in points))
    files = [place for spec in specs for place in spec.submodule_search_locations or [spec.origin or ""]]
    if family in LOOPBACK:
        with contextlib.suppress(taskset_file.TasksetFault):  # told as the task is opened
            files += taskset_file.files(argument)
    named = [path for path in (argument, argument.partition("?")[0]) if Path(path).is_absolute()]
    return list(dict.fromkeys([*files, *named, *(str(one) for path in named for one in _targets(Path(path)))]))


def _targets(folder: Path) -> Iterator[Path]:
    """Yield what links in a folder lead to: the data sets of a hub's cache are such links."""
    for place, folders, files in os.walk(folder):
        yield from (path.resolve() for name in (*folders, *files) if (path := Path(place, name)).is_symlink())


def _lacks(name: str) -> str:
    """Return the command that a family of ours needs before it can be opened; empty: none."""
    if name == "verifiers":
        return "" if taskset_file.usual_python().is_file() else command_adding(name)
    return "" if importlib.util.find_spec(_LIBRARY[name]) else command_adding(OWN_PLUGINS[name][1])


def _point(family: str, brought: list[EntryPoint]) -> EntryPoint | None:
    """Choose who makes a family (rule 2); None: this build. Raises `PluginFault`."""
    known = {name for name, _ in registry.list_tasks()}
    if brought and (family in known or family in OWN_PLUGINS):
        raise PluginFault(
            f"{_package(brought[0])} brings a task named {family}, which echo2 has itself: that package must give its "
            "entry point another name"
        )
    if len(brought) > 1:
        packages = " and ".join(sorted(map(_package, brought)))
        raise PluginFault(f"{packages} both bring a task named {family}: uninstall one of them")
    if family in OWN_PLUGINS:
        return EntryPoint(family, OWN_PLUGINS[family][0], GROUP)
    return brought[0] if brought else None


def check_name(name: str) -> None:
    """Check that the family of a task is known, without importing it. Raises `PluginFault`."""
    known = [family.name for family in families()]
    if name.partition(":")[0] not in known:
        raise _unknown(name, known)


def _unknown(name: str, known: Sequence[str]) -> PluginFault:
    near = difflib.get_close_matches(name.partition(":")[0], known, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? " if near else ""
    return PluginFault(
        f"there is no task {name}; {hint}known are {', '.join(known)}: correct the name, or install its plug-in"
    )


def _of_this_build(name: str, version: int | None) -> Task:
    versions = [number for other, number in registry.list_tasks() if other == name]
    if not versions:
        family, colon, _ = name.partition(":")
        if colon and any(family == other for other, _ in registry.list_tasks()):
            raise PluginFault(f"task {family} takes no argument: name it {family}, not {name}")
        raise _unknown(name, [family.name for family in families()])
    return registry.get(name, max(versions) if version is None else version)


def _open_task(point: EntryPoint, name: str, argument: str, version: int | None) -> Task:
    """Import a plug-in, make its task and check it (rule 3). Raises `PluginFault`."""
    where = f"the plug-in {point.name} of {_package(point)}"
    try:
        target = _load(point)
    except (Exception, SystemExit) as error:
        raise PluginFault(_not_imported(point, where, error)) from error
    try:
        made_task = target if _is_task(target) else target(argument)
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and OWN_PLUGINS.get(point.name, ("", ""))[1]:
            raise PluginFault(_not_imported(point, where, error)) from error
        raise PluginFault(_not_made(point, where, name, error)) from error
    if not _is_task(made_task):
        raise PluginFault(f"{where} gives {type(made_task).__name__}, which lacks a method of echo2.tasks.task.Task")
    if made_task.name != name:
        raise PluginFault(
            f"{where} was asked for the task {name} and gives one named {made_task.name!r:.80}: name that one, or "
            "correct the plug-in, whose tasks are named as they are asked for"
        )
    if not isinstance(made_task.version, int) or made_task.version < 1:
        raise PluginFault(
            f"{where} gives the version {made_task.version!r:.40}: a whole number of at least 1 is needed"
        )
    if version is not None and made_task.version != version:
        raise PluginFault(
            f"the run was made with version {version} of task {name}, and {where} has version {made_task.version}: "
            "install the package or restore the data of then, or make a new run"
        )
    checked: Task = made_task
    return checked


def _load(point: EntryPoint) -> Any:
    target: Any = importlib.import_module(point.module)
    for part in filter(None, (point.attr or "").split(".")):
        target = getattr(target, part)
    return target


def _not_imported(point: EntryPoint, where: str, error: BaseException) -> str:
    extra = OWN_PLUGINS.get(point.name, ("", ""))[1]
    if extra and isinstance(error, ImportError):
        return f"task {point.name} needs the extra {extra} ({error}): {command_adding(extra)}"
    return f"{where} cannot be imported: {type(error).__name__}: {error}"


def _not_made(point: EntryPoint, where: str, name: str, error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"the task {name} needs more memory than its process has: give it less data, or more memory"
    if point.name in OWN_PLUGINS and isinstance(error, ValueError):
        return f"the task {name} cannot be made: {error}"
    return f"{where} cannot make the task {name}: {type(error).__name__}: {error}"


def _is_task(target: object) -> bool:
    methods = ("size", "episode", "demonstration")
    return all(callable(getattr(target, method, None)) for method in methods) and not isinstance(target, type)


def _installed_points(points: Iterable[EntryPoint] | None) -> list[EntryPoint]:
    return list(entry_points(group=GROUP) if points is None else points)


def _package(point: EntryPoint) -> str:
    """Return the package that brings an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "echo2"
