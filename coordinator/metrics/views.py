"""What the world may see of a run: one frozen picture, made by the daemon; page, API, `status` and demo show it.

Every duration is in seconds, every time in milliseconds since the Unix epoch, every size in bytes.
"""

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the picture's parts."""


class NodeRow(View, frozen=True, kw_only=True, gc=False):
    """One node. `weight`: accepted work in milli-RE (reference rollouts). `points`: what the ledger's account holds.
    `route`: by which its last request came (direct, relay, https); None: none since the coordinator's start. `reached`:
    how others reach it, by what it announced last (direct, relay); None: nobody can. `rank`: new, known or proven.
    `suspended_until`: ms, also of a suspension that is over; None: there was none. `suspended_for`: its refusal code,
    or banned."""

    id: str
    name: str
    engine: str
    device: str
    connected: bool
    version: int | None
    accepted: int
    refused: int
    refusals: dict[str, int]
    rollouts: int
    tokens: int
    weight: int
    points: int
    last_seen: int
    route: str | None = msgspec.field(default=None, name="way")
    reached: str | None = None
    rank: str = "new"
    suspended_until: int | None = None
    suspended_for: str = ""


class StepPoint(View, frozen=True, kw_only=True):
    """One step of the learner. `reward`, `success`: means over its rollouts. `staleness`: mean age of its groups."""

    step: int
    at: int
    reward: float
    success: float
    staleness: float
    seconds: float
    metrics: dict[str, float]


class Evaluation(View, frozen=True, kw_only=True):
    """Held-out exact match of a version: `sampled` at T = 1 with fixed seeds, `greedy` beside it."""

    version: int
    at: int
    prompts: int
    sampled: float
    greedy: float


class CapacityView(View, frozen=True, kw_only=True):
    """The capacity model's measured terms (learning.md). None: not measured yet. `advice`: one sentence."""

    step_seconds: float | None
    turnaround_seconds: float | None
    rollouts_per_step: float
    publish_every: int
    supply: float
    need: float | None
    advice: str


class TransferView(View, frozen=True, kw_only=True):
    """What a node says that one peer sent it of a version. `began`, `ended`: seconds after the announcement."""

    peer: str
    nbytes: int
    began: float
    ended: float


class DeliveryView(View, frozen=True, kw_only=True):
    """A version's way to one node, seconds after its first Head went out. `complete`: the payloads were there;
    `applied`: the engine held it. `counted`: the node's work was accepted before, so its times count for the run."""

    node: str
    heard: float
    complete: float
    applied: float
    counted: bool
    feeds: list[TransferView]


class BroadcastView(View, frozen=True, kw_only=True):
    """How versions reach the nodes. `median`, `p95`, `slowest`: T_bcast, seconds from a version's first Head to its
    payloads at a node; `p90`: the same, `applied`: p90 to the engine, as the capacity model takes it; over `samples`
    acknowledgements of the last versions, None before the first. `version`: the newest acknowledged by a node that was
    here when it came out, with up to `MOST_TAKES` of those nodes, the fastest first; `unshown`: how many more."""

    source: str
    samples: int = 0
    median: float | None = None
    p90: float | None = None
    p95: float | None = None
    slowest: float | None = None
    applied: float | None = None
    version: int | None = None
    takes: list[DeliveryView] = []
    unshown: int = 0


class VersionRow(View, frozen=True, kw_only=True):
    """A published version and the bytes of its cheapest and full edges. `era`: 0 in records of older programs."""

    version: int
    era: int = 0
    at: int
    diff_bytes: int | None
    full_bytes: int
    first_node_seconds: float | None


class PauseView(View, frozen=True, kw_only=True):
    """Why the run is paused. `kind`: operator, batches, task-score or learner. `until`: when it goes on by itself;
    None: when the operator resumes it."""

    kind: str
    why: str
    since: int
    until: int | None


class SetAsideView(View, frozen=True, kw_only=True):
    """A batch at which the learner failed: its groups are paid and never learned from."""

    at: int
    groups: int
    reason: str


class LinksView(View, frozen=True, kw_only=True):
    """Connections. `open`: with peers over libp2p now. `refused`: since the coordinator's start, by the limit that
    refused them. `shortages`: how often no descriptor was free."""

    open: int = 0
    refused: dict[str, int] = {}
    shortages: int = 0


class TroubleView(View, frozen=True, kw_only=True):
    """The learner's troubles. `set_aside`: the last such batches. `reasons`: groups set aside by reason,
    since the run began. `waiting`: what the learner waits for; empty: it does not, or not for long."""

    paused: PauseView | None = None
    set_aside: list[SetAsideView] = []
    reasons: dict[str, int] = {}
    waiting: str = ""


class RunState(View, frozen=True, kw_only=True):
    """The whole picture. `refused`: groups by reason code. `staleness`: index = age at draw, value = groups.
    `unscored`: groups accepted for which the task gave no finite reward.
    `idle`: share of the learner's wall time spent waiting for groups, since its first step. `relayed_bytes`: passed on
    between nodes that could not reach each other, since the coordinator's start. `steps`, `evaluations`, `versions`: at
    most 500 each, the newest 250 whole and the earlier ones thinned. `nodes`: those with the most accepted work, at
    most 100 of the `nodes_known`, and those of the broadcast; /api/v1/nodes has all of them, in pages.
    `nodes_connected`: of all. `weight`: accepted work of all nodes, milli-RE. `root_serial`, `root_expires`: of the
    newest Root; `root_ends`: that it ends soon, and how to renew it; empty: it does not."""

    run: str
    name: str
    model: str
    parameters: int
    started: int
    now: int
    phase: str
    era: int
    version: int
    step: int
    steps_wanted: int | None
    staleness_limit: int
    group_size: int
    batch_groups: int
    idle: float | None
    buffered: int
    undecided: int
    running: int
    received: int
    accepted: int
    too_old: int
    refused: dict[str, int]
    expired: int
    staleness: list[int]
    steps: list[StepPoint]
    evaluations: list[Evaluation]
    versions: list[VersionRow]
    capacity: CapacityView
    broadcast: BroadcastView
    diff_bytes: int
    full_bytes: int
    nodes: list[NodeRow]
    invite: str
    faults: list[str]
    relayed_bytes: int = 0
    nodes_known: int = 0
    nodes_connected: int = 0
    weight: int = 0
    unscored: int = 0
    skipped: dict[str, int] = {}
    trouble: TroubleView = TroubleView()
    links: LinksView = LinksView()
    root_serial: int = 0
    root_expires: int | None = None
    root_ends: str = ""
