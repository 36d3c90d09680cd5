"""Tasks by name and version. A RunSpec names them; a node that lacks one says which versions it has."""

from tasks.arithmetic import ADD, REVERSE, SINGLE_SUM
from tasks.guess import GUESS
from tasks.task import Task

_TASKS: dict[tuple[str, int], Task] = {(task.name, task.version): task for task in (REVERSE, ADD, SINGLE_SUM, GUESS)}


class UnknownTask(LookupError):
    """No such task, or not in this version; the message names what there is."""


def known() -> list[tuple[str, int]]:
    """(name, version) of every task of this build, sorted."""
    return sorted(_TASKS)


def get(name: str, version: int) -> Task:
    """Raises UnknownTask."""
    task = _TASKS.get((name, version))
    if task is not None:
        return task
    versions = [str(v) for n, v in known() if n == name]
    if versions:
        raise UnknownTask(f"task {name} version {version} is not in this build, which has {', '.join(versions)}")
    names = ", ".join(sorted({n for n, _ in known()}))
    raise UnknownTask(f"task {name} is not in this build, which has {names}")
