"""Tasks by name and version. A RunSpec names a run's tasks; a node that lacks one reports the versions that it has."""

from echo2.tasks.arithmetic import ADD_TASK, REVERSE_TASK, SINGLE_SUM
from echo2.tasks.guess import GUESS
from echo2.tasks.task import Task

_TASKS: dict[tuple[str, int], Task] = {}


class UnknownTask(LookupError):
    """No such task, or not in this version; the message lists the tasks or versions of this build."""


def register(task: Task) -> None:
    """Add a task. Raises ValueError where its name and version are taken."""
    if (task.name, task.version) in _TASKS:
        raise ValueError(f"there is a task {task.name} version {task.version}: take another name, or the next version")
    _TASKS[task.name, task.version] = task


def list_tasks() -> list[tuple[str, int]]:
    """Return (name, version) of every task of this build, sorted."""
    return sorted(_TASKS)


def get(name: str, version: int) -> Task:
    """Return a task. Raises `UnknownTask`."""
    task = _TASKS.get((name, version))
    if task is not None:
        return task
    versions = [str(v) for n, v in list_tasks() if n == name]
    if versions:
        raise UnknownTask(
            f"task {name} version {version} is not in this build, which has {', '.join(versions)}: update echo2"
        )
    names = ", ".join(sorted({n for n, _ in list_tasks()}))
    raise UnknownTask(f"task {name} is not in this build, which has {names}: update echo2, or correct the name")


for _task in (REVERSE_TASK, ADD_TASK, SINGLE_SUM, GUESS):
    register(_task)
