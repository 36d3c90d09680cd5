"""The way of a simulated run's versions to its nodes: peers pass them on, or the coordinator sends each node a copy."""

import random
from collections.abc import Callable, Sequence

from benchmarks.plays.run_scene import RunScene
from benchmarks.plays.simulated_clock import SimulatedClock
from benchmarks.plays.simulated_node import SimulatedNode


class VersionDelivery:
    """Versions on their way to the nodes. `hear`: called with a node and the version that it has got. `copies`: of
    versions that the coordinator sent."""

    def __init__(
        self,
        scene: RunScene,
        clock: SimulatedClock,
        chances: random.Random,
        hear: Callable[[SimulatedNode, int], None],
    ) -> None:
        self.copies = 0.0
        self._scene, self._clock, self._random, self._hear = scene, clock, chances, hear
        self._newest = 0
        self._waiting: dict[SimulatedNode, None] = {}
        """Nodes that wait for a copy of a version, in the order in which they are sent one."""
        self._sends = False

    def send(self, nodes: Sequence[SimulatedNode], version: int) -> None:
        """Send a new version to the nodes."""
        scene = self._scene
        self.copies += 0 if scene.star else scene.copies
        for node in nodes:
            if scene.star:
                self._queue(node, version)
            elif node.here:
                late = scene.broadcast * self._random.uniform(0.7, 1.3)
                self._clock.after(late * scene.step_seconds, self._hear, node, version)

    def catch_up(self, node: SimulatedNode, version: int) -> None:
        """Let a node that was away or inactive have the newest version."""
        if self._scene.star:
            self._queue(node, version)
        else:
            node.newest = version

    def _queue(self, node: SimulatedNode, version: int) -> None:
        """Let a node wait for its copy of the newest version."""
        self._newest = version
        self._waiting.setdefault(node)
        self._send_next()

    def _send_next(self) -> None:
        while self._waiting and not self._sends:
            node = next(iter(self._waiting))
            del self._waiting[node]
            if node.here and node.active and node.newest < self._newest:
                self._sends = True
                self._clock.after(self._scene.star * self._scene.step_seconds, self._sent, node, self._newest)

    def _sent(self, node: SimulatedNode, version: int) -> None:
        self._sends, self.copies = False, self.copies + 1
        self._hear(node, version)
        self._send_next()
