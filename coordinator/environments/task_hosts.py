"""The hosts of a run's tasks."""

from collections.abc import Iterable, Iterator

from echo2.coordinator.environments.task_host import TaskHost


class TaskHosts:
    """The hosts of a run's tasks, in the order of the RunSpec. All are open."""

    def __init__(self, hosts: Iterable[TaskHost]) -> None:
        self._hosts = list(hosts)

    def __iter__(self) -> Iterator[TaskHost]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)
