"""`python -m echo2.coordinator.ray_scorers.ray_driver`: the child of the coordinator that speaks with Ray.

Rules
1. Hosts of a Ray cluster run what they like in each other's processes, so also in this one. It therefore has no keys
   and nothing of the coordinator's environment, opens few files, has TCP to the ports of Ray alone
   (runtime/child_budgets.py), and the coordinator bounds what it answers (runtime/child.py, rule 8).
2. It gives Ray bytes and takes bytes (coordinator/ray_scorers/messages.py). Answers of an actor pass unread.
3. Ray is asked to demand its token (`RAY_AUTH_MODE`), unless the operator's environment says otherwise.
4. Ray restarts an actor whose process or host died. The calls under way fail: the coordinator opens a new engine.
"""

import contextlib
import os
import queue
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from echo2.coordinator.environments import readable_files
from echo2.coordinator.ray_scorers.messages import (
    ActorCall,
    ActorName,
    ActorReply,
    Cluster,
    ClusterFacts,
    JoinOrder,
    OpenOrder,
)
from echo2.runtime import child_network, file_access
from echo2.runtime.child_budgets import confine
from echo2.runtime.child_pipe import Pipe
from echo2.runtime.hidden_folder import hide_named
from echo2.runtime.landlock import LandlockUnavailable
from echo2.runtime.own_memory import keep_private

if TYPE_CHECKING:
    import concurrent.futures

KIND: Final = "ray driver"
_SESSIONS: Final = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray")
"""Ray's folder of its sessions, in which a driver writes its log."""
_TOKEN: Final = Path("~/.ray/auth_token")
_LOOK_SECONDS: Final = 60.0
_REACH_SECONDS: Final = 10.0
_MOST_REASON: Final = 400
"""Characters of an error of Ray's that are passed on."""


class RayAway(Exception):
    """Ray is not installed, has no cluster there, or refuses this driver; the message says why."""


class ActorGone(Exception):
    """An actor's process or host is gone."""


class RayDriver:
    """The driver's table of calls. Those to actors are the pipe's `DeferredWork`. `wake`: called from a thread of Ray's
    when one is answered."""

    calls: Mapping[str, Any] = {"open": OpenOrder, "call": ActorCall, "notices": ActorName}
    barriers: Collection[str] = ()

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._actors: dict[int, Any] = {}
        self._pending: dict[int, Any] = {}
        """The object that Ray will fill, by call."""
        self._answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

    def handlers(self) -> Mapping[str, tuple[Any, Callable[[Any], Any]]]:
        """Return the table for `Pipe.serve`."""
        return {"join": (JoinOrder, self.join), "look": (None, self.look), "kill": (ActorName, self.kill)}

    def join(self, order: JoinOrder) -> Cluster:
        """Join a cluster. Raises `RayAway`."""
        address = own_cluster() if order.address == "auto" else order.address
        _confine(address)
        _reach(address)
        with _ray_errors(" (or its token, RAY_AUTH_TOKEN, is another)"):
            import ray

            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            resources = ray.cluster_resources()
        return Cluster(float(resources.get("GPU", 0.0)), float(resources.get("CPU", 0.0)))

    def look(self, nothing: None) -> ClusterFacts:
        """Return what a host of the cluster tells of itself. Raises `RayAway`."""
        from echo2.coordinator.ray_scorers import ray_actor

        with _ray_errors():
            import ray

            task = ray.remote(ray_actor.facts).options(num_cpus=0, max_retries=0)
            return msgspec.msgpack.decode(_bytes_of(ray.get(task.remote(), timeout=_LOOK_SECONDS)), type=ClusterFacts)

    def kill(self, name: ActorName) -> None:
        """End an actor's process; Ray starts another."""
        import ray

        if (actor := self._actors.get(name.number)) is not None:
            ray.kill(actor, no_restart=False)

    @property
    def idle(self) -> bool:
        """See `DeferredWork`."""
        return self._answers.empty()

    def begin(self, id: int, body: OpenOrder | ActorCall | ActorName) -> None:
        """Pass a call to its actor."""
        if isinstance(body, OpenOrder):
            # Ray repeats this call until the actor's process runs, however often that ends meanwhile.
            opening = self._actor(body).open.options(max_task_retries=-1)
            reference = opening.remote(msgspec.msgpack.encode(body))
        elif (actor := self._actors.get(body.number)) is None:
            raise ActorGone("this driver has not opened it")
        elif isinstance(body, ActorCall):
            reference = actor.call.remote(body.life, body.method, bytes(body.body))
        else:
            reference = actor.notices.remote(body.life)
        self._pending[id] = reference
        reference.future().add_done_callback(lambda future: self._on_answer(id, future))

    def cancel(self, id: int) -> None:
        """Take a call back."""
        import ray

        if (reference := self._pending.pop(id, None)) is not None:
            with contextlib.suppress(Exception):  # it may be answered already
                ray.cancel(reference)

    def step(self) -> Iterable[tuple[int, object]]:
        """Return the answers that have come."""
        while not self._answers.empty():
            id, answer = self._answers.get_nowait()
            if self._pending.pop(id, None) is not None:
                yield id, answer

    def _on_answer(self, id: int, future: "concurrent.futures.Future[Any]") -> None:
        try:
            answer: object = msgspec.msgpack.decode(_bytes_of(future.result()), type=ActorReply)
        except Exception as error:
            answer = ActorGone(_reason(error))
        self._answers.put((id, answer))
        self._wake()

    def _actor(self, order: OpenOrder) -> Any:
        """Return the actor of a scorer; Ray places a new one where there is none."""
        import ray

        from echo2.coordinator.ray_scorers.ray_actor import ScorerActor

        if order.number not in self._actors:
            wanted = {"num_cpus": 1, "num_gpus": 0} if order.device == "cpu" else {"num_cpus": 0, "num_gpus": 1}
            placed = ray.remote(ScorerActor).options(**wanted, max_restarts=-1)
            self._actors[order.number] = placed.remote()
        return self._actors[order.number]


def own_cluster() -> str:
    """Return the address of the cluster of which this host is a part, as Ray's own `auto` finds it. Raises
    `RayAway`."""
    if named := os.environ.get("RAY_ADDRESS"):
        return named
    try:
        return (_SESSIONS / "ray_current_cluster").read_text().strip()
    except OSError as error:
        raise RayAway("no cluster of Ray runs on this host") from error


def _bytes_of(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ActorGone("it answers no bytes")
    return value


def _confine(address: str) -> None:
    """Keep this process to its budget (rule 1), before Ray starts threads."""
    missing = confine(KIND, lambda: child_network.cluster(address))
    if missing:
        print(f"the driver of Ray has more of the network than Ray's ports: {missing}", file=sys.stderr)
    try:
        file_access.limit(
            read=[*readable_files.readable((), own_proc=True), _TOKEN.expanduser(), *_named_token()],
            write=[*readable_files.writable(), _SESSIONS],
        )
    except LandlockUnavailable as unavailable:
        print(f"the driver of Ray opens all files of its user, as {unavailable}", file=sys.stderr)


def _named_token() -> Iterator[Path]:
    if named := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        yield Path(named)


def _reach(address: str) -> None:
    """Connect to the control service, for which Ray would wait for a minute. Raises `RayAway`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise RayAway(f"nothing answers there ({getattr(error, 'strerror', '') or error})") from error


@contextlib.contextmanager
def _ray_errors(more: str = "") -> Iterator[None]:
    """Raise `RayAway` for whatever Ray raises. `more`: what may be the cause, too."""
    try:
        yield
    except ImportError as error:
        raise RayAway(f"Ray is not installed ({error})") from error
    except Exception as error:
        raise RayAway(_reason(error) + more) from error


def _reason(error: Exception) -> str:
    """Return an error of Ray's in one short sentence."""
    text = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
    return text[:_MOST_REASON]


def main() -> None:
    """Serve until the parent goes away."""
    keep_private()
    hide_named()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    pipe = Pipe()
    driver = RayDriver(pipe.wake)
    pipe.serve(driver.handlers(), work=driver)


if __name__ == "__main__":
    main()
