"""Define the public state of a run: one frozen value, built by the daemon and shown by page, API, `status` and demo.

Every duration is in seconds, every time in milliseconds since the Unix epoch, every size in bytes.

A new metric on the page is a field of `RunState` or of one of its parts. coordinator/web/run_view_builder.py fills it,
coordinator/web/templates/live.html shows it, and coordinator/web/prometheus.py exports it. The JSON API follows by
itself.
"""

import msgspec

from echo2.coordinator.metrics.market_views import MarketView, NodePay
from echo2.coordinator.metrics.trouble_views import GuardView, TroubleView


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node. `weight`: accepted work in milli-RE (reference rollouts). `points`: balance of its ledger account.
    `route`: route of its last request (direct, relay, https); None: no request since the coordinator's start.
    `reached`: how peers reach it, by its last announcement (direct, relay); None: they cannot. `rank`: new, known or
    proven. `suspended_until`: end of its last suspension, ms; None: it had none. `suspended_for`: the refusal code, or
    banned. `pay`: pay in a run with a market; None: the run pays in points. `score`: groups of audited work, halved
    every 7 days, in thousandths; not below 3 once it was there (ledger/audited_work.py)."""

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
    pay: NodePay | None = None
    score: int = 0


class TeamRow(msgspec.Struct, frozen=True, kw_only=True):
    """One team. `id`: the commitment to its name in the ledger, hexadecimal digits. `name`: empty: it was blotted out.
    `members`: nodes that state it now. `groups`, `weight` (milli-RE): of its members, each from the moment of its
    joining on. `score`: that work, halved every 7 days, milli-RE."""

    id: str
    name: str
    members: int
    groups: int
    weight: int
    score: int


class MadeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that a node made. `at`: time of the verdict, ms. `code`: reason of a refusal; empty: accepted."""

    lease: str
    at: int
    version: int
    code: str
    rollouts: int


class LearnedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that learned from groups of a node."""

    step: int
    groups: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node and what became of its work. `groups`: the newest decided ones, at most 50. `learned`: those of the last
    250 steps that learned from it, the newest first."""

    node: NodeRow
    groups: list[MadeGroup]
    learned: list[LearnedStep]


class StepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the learner. `reward`, `success`: means over its rollouts. `staleness`: mean age of its groups.
    `cut_answers`: share of its rollouts that the token limit cut; None: not known."""

    step: int
    at: int
    reward: float
    success: float
    staleness: float
    seconds: float
    metrics: dict[str, float]
    cut_answers: float | None = None


class TaskEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out exact match on one task's prompts."""

    task: str
    prompts: int
    sampled: float
    greedy: float


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out exact match of a version: `sampled` at the run's temperature with fixed seeds, `greedy` beside it; over
    the prompts of all tasks. `tasks`: each alone."""

    version: int
    at: int
    prompts: int
    sampled: float
    greedy: float
    tasks: list[TaskEvaluation] = []


class ReserveView(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a reserve of supply takes, and the age that it gives (coordinator/metrics/freshness.py).
    `reserve`: supply over the need. `need`: rollouts per second. `nodes`: nodes of those here that make it, the
    quickest first; None: all of them do not. `age`: mean of the groups learned from, estimated, steps; None: up to
    S."""

    reserve: float
    need: float
    nodes: int | None
    age: float | None


class CapacityView(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity model's measured terms (metrics/capacity.py). None: not measured yet. `longest_period`: kappa*.
    `scorers`: scorers that can work. `verified`: rollouts per second that they can verify together. `bottleneck`:
    nodes, scorer, uplink or staleness; None: nothing limits the run. `advice`: one sentence. `gamma`: the reserve of
    `need`. `reserves`: others beside it; empty: not measured yet. `newcomers`: share of new keys in the leases."""

    step_seconds: float | None
    turnaround_seconds: float | None
    rollouts_per_step: float
    publish_every: int
    supply: float
    need: float | None
    advice: str
    longest_period: int | None = None
    scorers: int = 1
    verified: float | None = None
    bottleneck: str | None = None
    gamma: float | None = None
    reserves: list[ReserveView] = []
    newcomers: float | None = None


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the way of the groups learned lately (metrics/group_stages.py). `name`: what ends it: held, leased,
    begun, generated, received, judged or drawn; whole: all of them together. `meaning`: what happens in it. `groups`:
    those measured. `seconds`, `steps`: medians over them; `mean_seconds`, `mean_steps`: means. Steps: None: no step's
    time is known."""

    name: str
    meaning: str
    groups: int
    seconds: float
    steps: float | None
    mean_seconds: float
    mean_steps: float | None


class StagesView(msgspec.Struct, frozen=True, kw_only=True):
    """The way of the groups learned lately, taken apart. `groups`: their number. `step_seconds`: step seconds of a
    step; None: not known. `whole`: from the publication of a group's version to its draw. `largest`: name of the part
    of the largest mean; empty: no group was learned from yet. `sentence`: names it in words."""

    groups: int = 0
    step_seconds: float | None = None
    whole: StageView | None = None
    parts: list[StageView] = []
    largest: str = ""
    sentence: str = ""


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """A node's report of the bytes of a version that one peer sent it. `began`, `ended`: seconds after the Head."""

    peer: str
    nbytes: int
    began: float
    ended: float


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of a version to one node, seconds after its first Head was published. `heard`: the node got the
    Head. `complete`: it had the payloads. `applied`: its engine had loaded the version. `counted`: work of the node was
    accepted before, so its times count for the run."""

    node: str
    heard: float
    complete: float
    applied: float
    counted: bool
    feeds: list[TransferView]


class BroadcastView(msgspec.Struct, frozen=True, kw_only=True):
    """The deliveries of the last versions. `median`, `p90`, `p95`, `slowest`: T_bcast, seconds from a version's first
    Head to its payloads at a node. `applied`: p90 until the engine has loaded it, as the capacity model uses it. All
    are over `samples` acknowledgements; None before the first. `version`: the newest version acknowledged by a node
    that was connected at its publication. `takes`: up to `MOST_TAKES` of those nodes (metrics/broadcast_stats.py),
    fastest first. `unshown`: the number of further ones."""

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


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published version. `diff_bytes`: diff bytes of its smallest diff; None: it has no
    diff. `full_bytes`: full bytes of its snapshot. `first_node_seconds`: first node seconds from its publication to the
    first lease request under it; None: no request yet."""

    version: int
    era: int
    at: int
    diff_bytes: int | None
    full_bytes: int
    first_node_seconds: float | None


class LinksView(msgspec.Struct, frozen=True, kw_only=True):
    """Connections. `open`: present ones over libp2p. `outside`: those that came in from public addresses since the
    coordinator's start. `refused`: number since then, per limit. `shortages`: how often no file descriptor was free.
    `hidden`: sentence where all newcomers seem to be at private addresses; empty: they do not."""

    open: int = 0
    outside: int = 0
    refused: dict[str, int] = {}
    shortages: int = 0
    hidden: str = ""


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger. `entries`: their number. `number`, `size`, `issued`: number, size and issued of the newest signed
    head, ms; 0: there is none. `note`: that head as a checkpoint in text. `foreign`: that a node holds a signed head
    which this ledger lacks, a sentence; empty: none is known to."""

    entries: int = 0
    number: int = 0
    size: int = 0
    issued: int = 0
    note: str = ""
    foreign: str = ""


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the run. `share`: share of the prompts. `accepted`, `unscored`: groups since the run began, all and
    those of which fewer than two rollouts have a finite reward. `groups`: the last ones with rewards, over which
    `reward` and `success` are means of the rollouts, `signal` the share of groups whose rewards are not all equal, and
    `cut` the share of rollouts that the token limit cut; None: there are none. `missing`: share of the rollouts of the
    last groups without a finite reward. `bias`: sentence where that depends on an answer's length. `failed`: failed
    episodes of its environment per reason, since the coordinator's start. `sampled`, `greedy`: held-out accuracy at the
    last evaluation that has it."""

    name: str
    kind: str
    share: float
    accepted: int = 0
    unscored: int = 0
    groups: int = 0
    reward: float | None = None
    success: float | None = None
    signal: float | None = None
    cut: float | None = None
    missing: float | None = None
    bias: str = ""
    failed: dict[str, int] = {}
    sampled: float | None = None
    greedy: float | None = None


class CanaryView(msgspec.Struct, frozen=True, kw_only=True):
    """Canaries since the run began (coordinator/leases/kinds/canaries.py): given, by whose answer; accepted by
    comparison, accepted by the scorer's pass, refused. `largest_share`: largest share of the answers at hand, of one
    party."""

    of_proven: int = 0
    of_scorer: int = 0
    agreed: int = 0
    scored: int = 0
    refused: int = 0
    largest_share: float = 0.0

    @property
    def given(self) -> int:
        """All canaries that were given."""
        return self.of_proven + self.of_scorer


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """Audits since the run began (coordinator/leases/kinds/audits.py): given; pairs of groups that agreed, that
    differed, and that agreed against the scorer. `share`: share of audits and canaries in the accepted work."""

    given: int = 0
    agreed: int = 0
    differed: int = 0
    doubted: int = 0
    share: float = 0.0


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a setting. `step`: the first one that it counts for; None: the learner has not opened since. `old`,
    `new`: values as in coordinator.toml, or "unset"."""

    at: int
    step: int | None
    key: str
    old: str
    new: str

    def sentence(self) -> str:
        when = "" if self.step is None else f", from step {self.step}"
        return f"{self.key} = {self.new}, it was {self.old}{when}"


class FaultView(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the coordinator's own processes. `at`: ms since the Unix epoch. `what`: a sentence."""

    at: int
    what: str


class ExampleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that the public page shows. `reward`: None: not scored."""

    text: str
    reward: float | None
    success: bool | None


class ExampleView(msgspec.Struct, frozen=True, kw_only=True):
    """A group that the public page shows, where the operator's settings say so. `index`: index of the prompt in its
    task. `answers`: the best and the worst."""

    task: str
    index: int
    version: int
    prompt: str
    answers: list[ExampleAnswer]


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a run. `refused`: groups per reason code. `staleness`: index = age at draw, value = groups.
    `unscored`: accepted groups for which the task gave no finite reward. `spare`: accepted groups of which a twin is
    learned from. `rollouts`: rollouts of accepted groups.
    `idle`: share of the learner's wall time spent waiting for groups, since its first step. `window`: the
    most batches on their way to the learner (coordinator/leases/lease_window.py); None: no draw has shown it yet.
    `relayed_bytes`: bytes relayed between nodes that could not reach each other, since the coordinator's start.
    `steps`, `evaluations`, `versions`: evaluations and versions at most 500 each: the newest 250, and thinned earlier
    ones. `nodes`: those with the most accepted work, at most 100 of the `nodes_known`, and those of the broadcast;
    /api/v1/nodes has all of them, in pages. `nodes_connected`: nodes connected of all. `weight`: accepted work of all
    nodes, milli-RE. `root_serial`, `root_expires`: number and end of the newest Root. `root_ends`: a
    warning that it expires soon, with the command that renews it; empty: it does not. `objective`: the loss that the
    learner lowers, in words. `market`: None in a run that pays in points. `teams`: the first 50 at most, with
    the most work. `description`, `page`, `contact`: those of the RunSpec; empty: not stated.
    `learning_rate`: the rate and its schedule, in words. `changes`: the last changes of settings, the newest first.
    `fingerprint`: that of the invite. `installing`: the command that installs this build of echo2."""

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
    faults: list[FaultView]
    objective: str
    relayed_bytes: int = 0
    nodes_known: int = 0
    nodes_connected: int = 0
    weight: int = 0
    unscored: int = 0
    spare: int = 0
    canaries: CanaryView = CanaryView()
    audits: AuditView = AuditView()
    skipped: dict[str, int] = {}
    trouble: TroubleView = TroubleView()
    links: LinksView = LinksView()
    root_serial: int = 0
    root_expires: int | None = None
    root_ends: str = ""
    tasks: list[TaskRow] = []
    guard: GuardView = GuardView()
    ledger: LedgerView = LedgerView()
    market: MarketView | None = None
    teams: list[TeamRow] = []
    stages: StagesView = StagesView()
    window: float | None = None
    rollouts: int = 0
    description: str = ""
    page: str = ""
    contact: str = ""
    fingerprint: str = ""
    installing: str = ""
    learning_rate: str = ""
    changes: list[SettingChange] = []
    examples: list[ExampleView] = []
