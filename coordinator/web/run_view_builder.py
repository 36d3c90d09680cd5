"""Build `coordinator.metrics.views.RunState`, the public state of the run, from run.sqlite and the live objects.

Rules
1. The event loop copies only the state of live objects, in a time independent of the history (`_copy_live`). Another
   thread reads run.sqlite over a connection of its own and completes the state (`_complete`).
2. That thread reads sums and open work, never a whole history table (coordinator/database/schema.py).
3. A `RunState` shows one state of run.sqlite; the part copied from live objects may be some milliseconds older.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio.to_thread
import msgspec

from echo2.coordinator.accounts import ledger_tiles
from echo2.coordinator.accounts.head_signing import entry_proof
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.ledger_tiles import BundlePart
from echo2.coordinator.accounts.run_logs import read_logs
from echo2.coordinator.database.database import Database, ReadConnections
from echo2.coordinator.epochs.epoch_figures import EpochFigures, PresentMarket
from echo2.coordinator.epochs.epoch_need import provisioned_rate
from echo2.coordinator.learner.age import oldest_fresh
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.metrics.audit_counts import audit_view
from echo2.coordinator.metrics.broadcast_stats import BroadcastStats
from echo2.coordinator.metrics.canary_counts import canary_view
from echo2.coordinator.metrics.capacity import Measured, view
from echo2.coordinator.metrics.freshness import FreshnessTerms, reserves
from echo2.coordinator.metrics.group_stages import stages
from echo2.coordinator.metrics.setting_changes import read_changes
from echo2.coordinator.metrics.views import (
    BroadcastView,
    CapacityView,
    FaultView,
    LinksView,
    NodeRow,
    NodeView,
    ReserveView,
    RunState,
)
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.run.setup import Run
from echo2.coordinator.run.signing import ends_soon
from echo2.coordinator.settings import objective_choices
from echo2.coordinator.settings.rate_schedule import describe_rate
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.scoring_loop import Scoring
from echo2.coordinator.training.training_loop import Training
from echo2.coordinator.verdicts.draw_record import read_draws
from echo2.coordinator.web import node_rows, proof_page, task_rows
from echo2.coordinator.web.market_rows import MarketRows
from echo2.coordinator.web.node_rows import Cursor, Page, page
from echo2.coordinator.web.pages import node_page
from echo2.coordinator.web.pages.private_facts import public_guard, public_tasks, public_trouble, without_places
from echo2.coordinator.web.pages.public_examples import PublicExamples
from echo2.coordinator.web.proof_page import LeaseProof
from echo2.coordinator.web.team_rows import read_teams
from echo2.ledger.tile_places import TilePlace
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.multiaddr import Route
from echo2.protocol.ledger_heads import EntryProof

MOST_NODES = 100
"""Nodes in a `RunState`, those with the most accepted work."""
_NOT_YET = CapacityView(
    step_seconds=None,
    turnaround_seconds=None,
    rollouts_per_step=0.0,
    publish_every=1,
    supply=0.0,
    need=None,
    advice="",
)


class LiveState(NamedTuple):
    """The part copied from live objects. `state`: state without the figures that `_complete` computes from run.sqlite
    and the other fields. `connected`: peer ids. `ways`: node's key -> route of its last request. `market`: None in a
    run that pays in points."""

    state: RunState
    broadcasts: BroadcastStats
    measured: Measured
    connected: set[str]
    ways: dict[bytes, Route]
    market: PresentMarket | None


@dataclass
class RunViewBuilder:
    """Builder of the run's public state. The daemon updates `connected`, `invite`, `relayed` and `links`. `faults`:
    faults since this process started. `clock`: seconds since the Unix epoch. `started`: Unix milliseconds.
    `installing`: command that installs this build. `market`: figures of a run that pays money."""

    run: Run
    group_service: GroupService
    training: Training
    scoring: Scoring
    publisher: Publisher
    faults: list[FaultView]
    started: int
    clock: Callable[[], float]
    installing: str = ""
    connected: set[str] = field(default_factory=set)
    invite: str = ""
    relayed: int = 0
    links: LinksView = field(default_factory=LinksView)
    market: EpochFigures | None = None
    _market_rows: MarketRows = field(default_factory=MarketRows)
    _nodes_pay: MarketRows = field(default_factory=MarketRows)
    """Of the pages of nodes, which another thread reads."""
    _connections: ReadConnections = field(init=False)
    _examples: PublicExamples = field(init=False)
    _rates: dict[bytes, float] = field(default_factory=dict)
    """Rates of the earlier states; used by one thread at a time, as states are built one after the other."""

    def __post_init__(self) -> None:
        self._connections = ReadConnections(self.group_service.database.path)
        self._examples = PublicExamples(self.run.folder)

    async def current_state(self) -> RunState:
        """Return the current state, built beside the event loop. Only one call at a time."""
        return await anyio.to_thread.run_sync(self._complete, self._copy_live())

    def build(self) -> RunState:
        """Return the current state, built in the calling thread."""
        return self._complete(self._copy_live())

    def need(self) -> float | None:
        """Return the rollouts per second to provision; None: not measured yet. Built in the calling thread."""
        live = self._copy_live()
        with Database.read(self.group_service.database.path) as database, database.reading():
            return provisioned_rate(self._capacity(live, database))

    def nodes(self, after: Cursor | None, most: int) -> Page:
        """Return at most `most` nodes after `after`, most accepted work first. It blocks: call it in a thread."""
        present = self._market()
        with self._connections.reading() as database:
            now = int(self.clock() * 1000)
            shown = page(database, after, most, self.connected, {}, now)
            if present is None:
                return shown
            return shown._replace(rows=self._nodes_pay.with_pay(shown.rows, present, database))

    def find_node(self, name: str) -> str | None:
        """Return the peer id of the node that a name or peer id names; None: it names no node, or several. It blocks:
        call it in a thread."""
        with self._connections.reading() as database:
            return node_page.find_node(database, name)

    def node(self, peer: str) -> NodeView | None:
        """Return a node and what became of its work; None: there is no such node. It blocks: call it in a thread."""
        present = self._market()
        with self._connections.reading() as database:
            view = node_page.read_node(database, peer, self.connected, int(self.clock() * 1000))
            if view is None or present is None:
                return view
            (row,) = self._nodes_pay.with_pay([view.node], present, database)
            return msgspec.structs.replace(view, node=row)

    def ledger_proof(self, entry: int, size: int) -> EntryProof | None:
        """Return the proof of a ledger entry under the signed head of `size` entries; None: there is no such entry or
        head. It blocks: call it in a thread."""
        with self._connections.reading() as database:
            signed = database.value("SELECT 1 FROM ledger_heads WHERE size = ?", (size,))
            return None if signed is None else entry_proof(Ledger(database), entry, size)

    def lease_proof(self, lease: str) -> LeaseProof | None:
        """Return the proof of a lease's own entry; None: there is none. It blocks: call it in a thread."""
        with self._connections.reading() as database:
            return proof_page.lease_proof(database, lease, self.run.chain)

    def ledger_tile(self, level: int, place: TilePlace) -> bytes | None:
        """Return a tile of the ledger's tree; None: there is no such tile (yet). It blocks: call it in a thread."""
        with self._connections.reading() as database:
            return ledger_tiles.tile(database, level, place)

    def ledger_bundle(self, place: TilePlace, first: int) -> BundlePart | None:
        """Return a part of a bundle of entries; None: there is no such bundle (yet). It blocks: call it in a thread."""
        with self._connections.reading() as database:
            return ledger_tiles.bundle_part(database, place, first)

    def sealed_logs(self) -> list[bytes]:
        """Return the documents of the run's restored logs, sealed, in order."""
        return [one.sealed for one in read_logs(self.run.folder, self.run.chain).logs]

    def sealed_roots(self) -> list[bytes]:
        """Return the run's Roots, sealed, oldest first."""
        return list(self.run.roots)

    def sealed_runspec(self) -> bytes:
        """Return the run's RunSpec, sealed."""
        return self.run.runspec_sealed

    def _copy_live(self) -> LiveState:
        """Copy the state of the live objects (rule 1)."""
        config = self.run.config.run
        at = self.group_service.progress
        latest = self.publisher.latest
        history, guard = self.training.history, self.training.guarding.view()
        registry, window = self.group_service.registry, self.group_service.leases.window
        state = RunState(
            run=self.run.id.hex(), name=config.name, model=config.model, parameters=self.training.parameters,
            started=self.started, now=int(self.clock() * 1000), phase=self._phase(), era=at.era if at else 0,
            version=latest.version if latest else 0, step=at.steps_made if at else 0,
            steps_wanted=self.training.last_step, staleness_limit=config.staleness, group_size=config.group_size,
            batch_groups=config.batch_groups, objective=objective_choices.describe_loss(self.run.config.learner),
            learning_rate=describe_rate(self.run.config.learner, guard.rate), idle=self.training.utilisation.idle,
            window=window.batches if window.last.windows else None, buffered=self.group_service.count_buffered(),
            undecided=0, running=0, received=0, accepted=0, too_old=0, refused={}, unscored=0,
            trouble=public_trouble(self.training.watch.view()), guard=public_guard(guard),
            expired=0, staleness=list(self.group_service.buffer.histogram),
            steps=[history.steps[number] for number in sorted(history.steps)],
            evaluations=[history.evaluations[number] for number in sorted(history.evaluations)],
            versions=[history.versions[number] for number in sorted(history.versions)], capacity=_NOT_YET,
            broadcast=BroadcastView(source=self.run.peer_id), diff_bytes=history.diff_bytes,
            full_bytes=history.full_bytes, nodes=[], invite=self.invite,
            faults=[FaultView(at=one.at, what=without_places(one.what)) for one in self.faults],
            relayed_bytes=self.relayed, links=self.links,
            root_serial=self.run.root.serial, root_expires=self.run.root.expires,
            root_ends=ends_soon(self.run.root, int(self.clock() * 1000)),
            tasks=public_tasks(
                task_rows.live_rows(self.run.runspec.tasks, self.group_service.episodes, history.evaluations)
            ),
            description=self.run.runspec.description, page=self.run.runspec.page, contact=self.run.runspec.contact,
            fingerprint=Invite.from_text(self.invite).fingerprint if self.invite else "", installing=self.installing,
        )  # fmt: skip
        measured = Measured(
            step_seconds=self.training.utilisation.step_seconds, turnaround_seconds=None,
            rollouts_per_step=float(config.batch_groups * config.group_size), supply=0.0,
            verified=self.scoring.verified_rate,
            scorers=len(self.scoring.working), broadcast_seconds=self.group_service.broadcasts.duration(),
            idle=window.idle_at(state.now),
        )  # fmt: skip
        return LiveState(
            state, self.group_service.broadcasts.copy(), measured, set(self.connected), registry.sightings.routes(),
            self._market(),
        )  # fmt: skip

    def _market(self) -> PresentMarket | None:
        return None if self.market is None else self.market.present()

    def _complete(self, live: LiveState) -> RunState:
        """Complete a live state from run.sqlite, in any thread (rules 1 to 3)."""
        now = live.state.now
        with Database.read(self.group_service.database.path) as database, database.reading():
            counted = run_metrics.counts(database, now)
            broadcast = live.broadcasts.view(self.run.peer_id)
            nodes = _shown_nodes(database, broadcast, live.connected, live.ways, now)
            known = int(database.value("SELECT value FROM tallies WHERE name = 'nodes'"))
            online, weight = node_rows.count_known(database, live.connected), run_metrics.work(database)
            capacity = self._capacity(live, database)
            canaries = canary_view(database, live.state.era, live.state.version)
            audits = audit_view(database)
            tasks = task_rows.complete_rows(live.state.tasks, database)
            ledger = run_metrics.ledger(database)
            teams = read_teams(database, now)
            learned = stages(read_draws(database))
            changes = read_changes(database, public=True)
            oldest = oldest_fresh(live.state.step, self.group_service.terms.staleness)
            most = self.run.config.web.examples
            examples = self._examples.read(database, most, now, live.state.era, oldest)
            market = None
            if live.market is not None:
                market = self._market_rows.view(live.market, database, capacity.step_seconds)
                nodes = self._market_rows.with_pay(nodes, live.market, database)
        return msgspec.structs.replace(
            live.state, phase="finishing" if live.state.phase == "finished" and counted.undecided else live.state.phase,
            undecided=counted.undecided, running=counted.running, received=counted.received, accepted=counted.accepted,
            rollouts=counted.rollouts, too_old=counted.too_old, refused=counted.refused, unscored=counted.unscored,
            spare=counted.spare, canaries=canaries, audits=audits, expired=counted.expired, skipped=counted.skipped,
            capacity=capacity, broadcast=broadcast, nodes=nodes, nodes_known=known, nodes_connected=online,
            weight=weight, tasks=tasks, ledger=ledger, market=market, teams=teams, stages=learned, changes=changes,
            examples=examples,
        )  # fmt: skip

    def _capacity(self, live: LiveState, database: Database) -> CapacityView:
        config = self.run.config
        reach = live.broadcasts.reach() or 0.0
        now = live.state.now
        refill = self.group_service.buffer.refill
        measured = run_metrics.complete_measurements(database, live.measured, reach, now, self._rates, refill=refill)
        capacity = view(config.run.staleness, self.training.period.current, config.leases.gamma, measured)
        return msgspec.structs.replace(
            capacity,
            gamma=config.leases.gamma,
            newcomers=config.leases.newcomers,
            reserves=self._reserves(capacity, reach, run_metrics.mean_turnaround(database)),
        )

    def _reserves(self, capacity: CapacityView, reach: float, back: float | None) -> list[ReserveView]:
        """Return what other reserves would give. `reach`: seconds until a version is in use at a node. `back`: ms from
        lease to verdict."""
        config, step = self.run.config, capacity.step_seconds
        if capacity.need is None or not step or back is None:
            return []
        terms = FreshnessTerms(
            staleness=config.run.staleness,
            period=capacity.publish_every,
            latency=(reach + back / 1000) / step,
            least=capacity.need / config.leases.gamma,
        )
        return reserves(terms, config.leases.gamma, self._rates.values())

    def _phase(self) -> str:
        """Return the phase known to the event loop; undecided groups later turn "finished" into "finishing"."""
        at = self.group_service.progress
        if at is None:
            return "starting"
        if not at.finished:
            return "learning" if self.training.watch.pause is None else "paused"
        return "finished" if self.scoring.is_settled() else "finishing"


def _shown_nodes(
    database: Database, broadcast: BroadcastView, connected: Collection[str], ways: Mapping[bytes, Route], now: int
) -> list[NodeRow]:
    """Return the nodes to show, most work first: the first `MOST_NODES`, and all nodes named by the broadcast."""
    best = page(database, None, MOST_NODES, connected, ways, now).rows
    shown = {row.id for row in best}
    named = dict.fromkeys(take.node for take in broadcast.takes if take.node not in shown)
    return best + sorted(node_rows.rows_of(database, named, connected, ways, now), key=lambda row: -row.weight)
