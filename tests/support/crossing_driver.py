"""A driver of Ray's scorers without Ray, whose answers cross the withdrawals of their calls: `python -m
tests.support.crossing_driver`. The engine of scorer 1 is lost at its first call; the others answer what they are given.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from echo2.coordinator.ray_scorers.messages import ActorCall, ActorName, ActorReply, Cluster, JoinOrder, OpenOrder
from echo2.runtime.child_pipe import Pipe

LOST = RuntimeError("its host is gone")


class CrossingDriver:
    """The calls of actors, as `DeferredWork`."""

    calls: Mapping[str, Any] = {"open": OpenOrder, "call": ActorCall, "notices": ActorName}
    barriers: Collection[str] = ()

    def __init__(self) -> None:
        self._answers = list[tuple[int, object]]()

    @property
    def idle(self) -> bool:
        return not self._answers

    def begin(self, id: int, body: OpenOrder | ActorCall | ActorName) -> None:
        if isinstance(body, OpenOrder):
            self._answers.append((id, ActorReply()))
        elif isinstance(body, ActorCall):
            self._answers.append((id, LOST if body.number == 1 else ActorReply(body.body)))

    def cancel(self, id: int) -> None:
        """Answer all the same, as if the answer had been on its way."""
        self._answers.append((id, LOST))

    def step(self) -> Iterable[tuple[int, object]]:
        answers, self._answers = self._answers, []
        return answers


def main() -> None:
    def join(order: JoinOrder) -> Cluster:
        return Cluster(0.0, 2.0)

    def kill(name: ActorName) -> None:
        """End no process: there is none."""

    Pipe().serve({"join": (JoinOrder, join), "kill": (ActorName, kill)}, work=CrossingDriver())


if __name__ == "__main__":
    main()
