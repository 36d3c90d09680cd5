"""The calls of scorers on other hosts: coordinator -> driver, by the pipe of runtime/child.py, and coordinator ->
actor, as bytes in calls of Ray.

    join      JoinOrder          -> Cluster       driver: joins the cluster; first
    look      None               -> ClusterFacts  driver: an own task tells what a host of the cluster has
    open      OpenOrder          -> ActorReply    Opened: actor: a new engine, in a process of that host
    call      ActorCall          -> ActorReply    actor: a call of its engine, or one of the fetching ones below
    notices   ActorName          -> ActorReply    list[Notice]: actor: waits until its engine notifies
    kill      ActorName          -> None          driver: Ray ends the actor's process, and starts another

Rules
1. Ray carries bytes alone, of the messages here; each side decodes them by their types. The bodies of calls, answers
   and notices are those of engines/process/messages.py.
2. A process of an actor has one engine, and that has a *life*, a number of its own: a call of another life is answered
   by `ended`. So nothing that was sent to an engine that is gone reaches the next one, whatever Ray repeats.
3. An error of the engine is a `fault`, as on a pipe. Whatever ends the engine, or leaves unknown whether it lives, is
   `ended`, or an error of the driver.
"""

from typing import Any, ClassVar, Final

import msgspec

from echo2.engines.engine import Loaded
from echo2.engines.process.messages import EngineCall
from echo2.p2p.payload_manifest import Manifest
from echo2.protocol.authority import Asset
from echo2.runtime.pipe_frames import PipeFault

MOST_REPLY_BYTES: Final = 64 << 20
"""Most bytes of an answer: a group of a million tokens has 12 MB of scores."""
SIGN: Final = "sign"
"""The notice of an actor that fetches: it is at work."""


class JoinOrder(msgspec.Struct, frozen=True):
    """`address`: `auto`, or HOST:PORT of Ray's control service."""

    address: str


class Cluster(msgspec.Struct, frozen=True):
    """The resources of all hosts of a cluster."""

    gpus: float
    cpus: float


class ClusterFacts(msgspec.Struct, frozen=True):
    """`echo2`: version of the echo2 on a host. `secured`: whether its Ray asks for a token."""

    echo2: str
    secured: bool


class OpenOrder(msgspec.Struct, frozen=True):
    """`run`: run id in hexadecimal. `number`: number of the scorer, from 1. `device`: kind of a device. `life`:
    life that begins (rule 2)."""

    run: str
    number: int
    device: str
    life: int


class ActorName(msgspec.Struct, frozen=True):
    """`number`, `life`: those of `OpenOrder`."""

    number: int
    life: int


class ActorCall(msgspec.Struct, frozen=True):
    """`method`, `body`: name and body of a call."""

    number: int
    life: int
    method: str
    body: msgspec.Raw


class ActorReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`body`: answer. `fault`: error of a handler. `ended`: why the engine is gone (rule 3). At most one of the last
    two is there."""

    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: PipeFault | None = None
    ended: str = ""


class Notice(msgspec.Struct, frozen=True):
    """A notification of the engine, or `SIGN`."""

    method: str
    body: msgspec.Raw


class PayloadSource(msgspec.Struct, frozen=True):
    """A coordinator's HTTPS server. `pin`: SHA-256 of its key (SPKI)."""

    addresses: list[str]
    pin: bytes


class PayloadStep(msgspec.Struct, frozen=True):
    """A payload, and the content root of the weights that it leads to."""

    manifest: Manifest
    root: bytes


class FetchAllCall(EngineCall[Loaded | None], frozen=True, kw_only=True):
    """Load weights. `chain`: payloads that lead from nothing to them; empty: those of the actor's folder, None where
    it has none. `model`: the model's files."""

    method: ClassVar[str] = "fetch_all"
    answer: ClassVar[Any] = Loaded | None
    changes_weights: ClassVar[bool] = True
    source: PayloadSource
    model: list[Asset]
    chain: list[PayloadStep] = msgspec.field(default_factory=list)


class FetchStepCall(EngineCall[Loaded], frozen=True, kw_only=True):
    """Step by a payload. `keep`: see `StepByCall`."""

    method: ClassVar[str] = "fetch_step"
    answer: ClassVar[Any] = Loaded
    changes_weights: ClassVar[bool] = True
    source: PayloadSource
    step: PayloadStep
    keep: int


class ShowCall(EngineCall[bytes], frozen=True, kw_only=True):
    """Return the hash by which the bytes are shown that a lease asks for, of the weights that are loaded."""

    method: ClassVar[str] = "show"
    answer: ClassVar[Any] = bytes
    lease: bytes


class ForgetCall(EngineCall[None], frozen=True, kw_only=True):
    """Delete the actor's folder of weights, which are damaged."""

    method: ClassVar[str] = "forget"
    answer: ClassVar[Any] = None


FETCHING_CALLS: Final = (FetchAllCall, FetchStepCall, ShowCall, ForgetCall)
"""Calls that the actor answers itself."""
WITHDRAWN: Final = ("generate", "score")
"""Calls that a caller takes back who is cancelled (engines/process/messages.py)."""
