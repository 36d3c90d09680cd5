"""The commands of the control socket: the owner's questions to a running node, and the owner's orders.

`status` reports the node's whole state in plain values. `why` reports the one rule that blocks work now, the last
refusals, and why the last documents, answers and attempts to follow the run failed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from echo2.engines.devices.devices import names_device
from echo2.engines.process.engine_fleet import EngineFleet
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.node.config import NodeConfig
from echo2.node.connectivity import Connectivity
from echo2.node.control.owner_socket import lease_of
from echo2.node.engine_child import starting_words
from echo2.node.errors import BadConfig, RefusedByRun
from echo2.node.joined_run import page_address, permalink
from echo2.node.limits.caps_watch import CapsWatch
from echo2.node.limits.device_limits import DeviceLimits
from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.node.links.own_rank import OwnRank
from echo2.node.market.ask_keeper import AskKeeper
from echo2.node.market.market_words import MILLI, ask_standing, place_text
from echo2.node.market.payee_keeper import PayeeKeeper
from echo2.node.owner.device_sensors import NOTHING_READ, DeviceSensors
from echo2.node.rollouts.engine_workers import EngineWorkers
from echo2.node.rollouts.ledger_exchange import LedgerExchange
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.receipt_proofs import ENDS_KEPT
from echo2.node.rollouts.worker import STARTING_REASON, RolloutWorker
from echo2.node.run_context import RunContext
from echo2.node.run_state import NodeRunState
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.versions.follower import Follower
from echo2.node.versions.payload_fetcher import PayloadFetcher
from echo2.p2p.envelope import Verified
from echo2.p2p.errors import P2PError
from echo2.p2p.network import Network
from echo2.protocol.appeals import AppealRequest
from echo2.protocol.authority import RunSpec
from echo2.protocol.methods import APPEAL
from echo2.protocol.refusals import STANDBY
from echo2.protocol.versions import Head
from echo2.runtime.control_socket import Command

FETCH_SECONDS: Final = 20.0
"""Most seconds for which `fetch` works: the client of the control socket waits 30 s."""

_NO_LIMITS: Final = {"duty": 100, "hottest": None, "power": None, "reserve": None}

T = TypeVar("T")

_log = structlog.get_logger("node")


@dataclass(frozen=True, kw_only=True)
class DaemonParts:
    """The parts of a daemon that its commands read or change."""

    config: NodeConfig
    context: RunContext
    network: Network
    fleet: EngineFleet
    follower: Follower
    payloads: PayloadFetcher
    connectivity: Connectivity
    rollouts: EngineWorkers
    outbox: Outbox
    ledger_store: LedgerStore
    ledger_exchange: LedgerExchange
    run_state: NodeRunState
    own_rank: OwnRank
    caps_watch: CapsWatch
    device_limits: DeviceLimits
    sensors: DeviceSensors | None
    ask_keeper: AskKeeper
    payee_keeper: PayeeKeeper


class ControlCommands:
    """The answers to the owner's commands: they read every part of the daemon and change only its run state."""

    def __init__(self, parts: DaemonParts) -> None:
        self._parts = parts
        self._run_state = parts.run_state

    def by_name(self) -> dict[str, Command]:
        """Return the commands by name, for the control socket."""
        return {
            "status": self.status,
            "why": self.why,
            "pause": self.pause,
            "resume": self.resume,
            "finish": self.finish,
            "slow": self.slow,
            "caps": self.caps,
            "privacy": self.privacy,
            "verdict": self.verdict,
            "fetch": self.fetch,
            "ask": self.ask,
            "market": self.market,
            "payee": self.payee,
        }

    async def status(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the state in plain values; bytes are counted since the daemon's start. `points`: work of the accepted
        groups, RE. `rank`: "3 of 17" on the run's page; None: not known. `permalink`: this node's part of the page.
        `ways`: number of peers by the way in which they are reached. `caps`: those in force, Mbit/s and percent; None:
        no limit. `lag`: versions between the one
        loaded and the newest one heard; None until both are known, and while their eras differ. `payloads`: bytes
        fetched for the last versions. `ledger`: number of the newest head that this node checked, whether other parties
        have shown the same history, and number of its receipts with a proof. `unproven`: which proofs are missing for
        too long, and a head dated ahead of its time; empty: none. `other_daemon`: what the owner is told of another
        daemon with the node's key; empty: none is known. `market`: the node's place and ask in a run that pays money,
        and an account of its pay that was named elsewhere; empty: it pays points, or has not answered yet."""
        parts, links, coordinator_client = self._parts, self._parts.network.links, self._coordinator_client
        trusted, newest = parts.context.trust_store.trusted, parts.follower.heads.newest
        current, probed = parts.fleet.current, parts.fleet.probed
        try:
            traffic, routes = await parts.network.exchange.traffic(), await links.routes()
        except P2PError as error:
            raise ValueError(f"the node starts, or ends: {error}") from error
        head = parts.ledger_store.newest()
        return {
            "state": self._state(),
            "blocked": self._blocking_reason(),
            **_run_facts(trusted.runspec, links.peer_id),
            "points": parts.outbox.work() / MILLI,
            "rank": parts.own_rank.words() or None,
            "node": links.peer_id,
            "name": parts.config.name,
            "device": parts.fleet.hardware or None,
            "engine": probed.engine_class if probed else None,
            "era": current.era if current else None,
            "version": current.version if current else None,
            "newest": newest.version if newest else None,
            "lag": _lag(current, newest),
            "coordinator": coordinator_client.peer,
            "way": routes.get(coordinator_client.peer or ""),
            "ways_failed": [{"way": route, "reason": reason} for route, reason in coordinator_client.failures.items()],
            "reached": parts.connectivity.reachability.summary,
            "peers": len(routes),
            "ways": Counter(routes.values()),
            "leases": parts.rollouts.done,
            "outbox": parts.outbox.counts(),
            "refused": [one._asdict() for one in parts.outbox.refused_by_reason()],
            "ledger": {
                "head": 0 if head is None else head.head.number,
                "history": parts.ledger_exchange.history,
                "proved": parts.ledger_store.count_proved(),
            },
            "unproven": self._unproven,
            "other_daemon": parts.context.instance.warning,
            "market": self._market(),
            "engine_restarts": parts.fleet.deaths,
            "engines": await self._engines(),
            "slow": parts.caps_watch.caps.slow,
            "caps": parts.caps_watch.caps.now.facts(),
            "connections_refused": traffic.refused,
            "received_bytes": traffic.received,
            "sent_bytes": traffic.sent,
            **_payload_facts(parts.payloads),
        }

    async def _engines(self) -> list[dict[str, Any]]:
        """Return a row per engine. `rate`: tokens of complete groups per second. `under_way`: leases whose groups are
        under way. `leases`: leases completed. `duty`, `hottest`, `power`, `reserve`: the owner's limits, %, °C, W and
        bytes; None: no limit. The rest: see `node.owner.device_sensors.DeviceReading`."""
        parts, now, newest = self._parts, asyncio.get_running_loop().time(), self._parts.follower.heads.newest
        trios = list(zip(parts.fleet.engines, parts.rollouts.workers, self._run_state.devices, strict=True))
        readings = await parts.sensors.read_all(parts.fleet.engines) if parts.sensors else [NOTHING_READ] * len(trios)
        return [
            {
                "engine": one.probed.engine_class if one.probed else None,
                "device": one.device_name,
                "hardware": one.probed.hardware if one.probed else None,
                "version": one.current.version if one.current else None,
                "lag": _lag(one.current, newest),
                "rows": one.rows.running,
                "most_rows": one.rows.limit,
                "rate": None if (rate := worker.rate.per_second(now)) is None else round(rate, 1),
                "under_way": len(worker.leases),
                "leases": worker.done,
                "restarts": one.deaths,
                "state": "paused" if state.paused else "working" if worker.working else "waiting",
                "why": self._device_rule(one, worker, state),
                **self._limits(number),
                **reading._asdict(),
            }
            for number, ((one, worker, state), reading) in enumerate(zip(trios, readings, strict=True))
        ]

    def _limits(self, number: int) -> dict[str, Any]:
        """Return the owner's limits of a device, by its number among the engines; see `_engines`."""
        parts, limit_of = self._parts, self._parts.device_limits.limit_of
        duty = parts.caps_watch.caps.now.duty_of(parts.fleet.engines[number].device_name)
        return {
            "duty": duty, "hottest": limit_of("hottest", number), "power": limit_of("power", number),
            "reserve": int(limit_of("reserve", number) * 1e9) or None,
        }  # fmt: skip

    def _device_rule(self, engine: VersionedEngine, worker: RolloutWorker, state: NodeRunState) -> str | None:
        """Return the one rule that blocks a device now, where it is not that of the whole node; None: there is none."""
        if state.paused:
            return None if self._run_state.paused else state.why_paused
        return (
            self._parts.fleet.out.get(engine)
            or (worker.blocked if len(self._parts.fleet.engines) > 1 else None)
            or None
        )

    async def why(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the one rule that blocks work now, the last refusals and failures, and the groups in quarantine: until
        when (ms), and their weight (milli-RE). `limits`: the owner's, of each device that has any. `unproven`,
        `other_daemon`: see `status`. `settled_forks`: settled forks of the ledger, that a Root settled by revoking the
        key. `lost_receipts`: leases in whose place the ledger is proved to have another entry."""
        rows = await self._engines()
        limited = [{key: row[key] for key in ("device", *_NO_LIMITS)} for row in rows]
        return {
            "blocked": self._blocking_reason() or "nothing blocks: the node works",
            "devices": [{"device": row["device"], "blocked": row["why"]} for row in rows if row["why"]],
            "limits": [row for row in limited if row != {"device": row["device"], **_NO_LIMITS}],
            "unproven": self._unproven,
            "other_daemon": self._parts.context.instance.warning,
            "market": self._market(),
            "refusals": [
                {"code": code, "reason": sentence, "times": times}
                for (code, sentence), times in Counter(
                    (one.code, one.sentence) for one in self._parts.rollouts.refusals
                ).items()
            ],
            "groups_refused": [
                {"lease": row.lease.hex(), "code": row.code, "reason": row.reason}
                for row in self._parts.outbox.rows(256)
                if row.state == "refused"
            ][:16],
            "settled_forks": self._parts.ledger_store.settled_forks(),
            "lost_receipts": [lease.hex() for lease in self._parts.outbox.lost_leases()][:16],
            "quarantined": [
                {"until": until, "groups": groups, "weight": weight}
                for until, (groups, weight) in sorted(self._parts.outbox.quarantine_by_day(self._now()).items())
            ],
            "not_believed": [*self._parts.follower.refused, *self._coordinator_client.lies],
        }

    async def verdict(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the basis of the verdict on a lease of this node, as the coordinator tells it. `ask`: appeal it."""
        lease = lease_of(str(asked.get("lease", "")))
        request = AppealRequest(lease=lease, ask=asked.get("ask") is True)
        basis = await _answered(self._coordinator_client.call(APPEAL, request))
        return {
            "lease": lease.hex(),
            "code": basis.code,
            "reason": basis.reason,
            "statistic": basis.statistic,
            "threshold": basis.threshold,
            "calibration": "none: the class is exact" if basis.calibration is None else basis.calibration.hex(),
            "stored": basis.stored,
            "checks": basis.state,
            "answers": [{"by": one.by, "code": one.code, "reason": one.reason, "at": one.at} for one in basis.answers],
            "reversed": {None: "no", True: "paid after all", False: "taken back"}[basis.reversed],
        }

    async def fetch(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Fetch the proofs of receipts that have none yet; return how many have one then. `too_old`: receipts of groups
        that earned nothing, whose proof the coordinator no longer has."""
        parts = self._parts
        before = parts.ledger_store.count_proved()
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                await parts.ledger_exchange.fetch()
        except TimeoutError:
            _log.info("fetching proofs goes on with the next round")
        except P2PError as error:
            raise ValueError(str(error)) from error
        counts = parts.outbox.unproved_counts(parts.context.clock.local() - ENDS_KEPT)
        return {
            "fetched": parts.ledger_store.count_proved() - before,
            "proved": parts.ledger_store.count_proved(),
            "without_proof": counts.missing,
            "too_old": counts.too_old,
            "unproven": self._unproven,
        }

    async def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Take another ask from the owner. `text`: the same as in `echo2-node config set ask`; None: none is wanted."""
        text = asked.get("text")
        if text is not None and not isinstance(text, str):
            raise BadConfig("text must be an ask, as in 0.12/h")
        self._parts.ask_keeper.want(text)
        return {"ask": text}

    async def market(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Ask the run for the node's place and balances, and store the answer. `currency`: empty: the run pays
        points."""
        keeper = self._parts.ask_keeper
        await _answered(keeper.ask_now())
        return {"currency": keeper.currency, "market": self._market()}

    async def payee(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Tell the run the account that the node's pay goes to, or ask which one does. `account`: None: ask alone."""
        account = asked.get("account")
        if account is not None and not isinstance(account, str):
            raise BadConfig("account must be a text")
        return {"payee": (await _answered(self._parts.payee_keeper.name(account))).lines()}

    def _market(self) -> str:
        """Return the node's place, its ask, and what is wrong with it; empty: see `status`."""
        keeper, payee = self._parts.ask_keeper, self._parts.payee_keeper.warning
        if not keeper.currency or keeper.latest is None:
            return "; ".join(filter(None, [keeper.trouble, payee]))
        answer = keeper.latest.answer
        return "; ".join(filter(None, [place_text(answer), ask_standing(answer), keeper.trouble, payee]))

    @property
    def _unproven(self) -> str:
        exchange = self._parts.ledger_exchange
        return "; ".join(filter(None, [exchange.watch.proofs.unproven, exchange.ahead]))

    async def pause(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Request no new lease, and free the device within seconds. `seconds`: length of the pause; absent: until
        resumed. `gpu`: devices by name or number, with commas between; "all" or absent: all."""
        seconds = asked.get("seconds")
        if seconds is not None and (not isinstance(seconds, int | float) or seconds <= 0):
            raise BadConfig("seconds must be a number above 0")
        for state in self._states_of(asked):
            state.pause(seconds)
        return {"state": self._state()}

    async def resume(self, asked: dict[str, Any]) -> dict[str, Any]:
        """End a pause, and override the rules that block. `gpu`: see `pause`."""
        for state in self._states_of(asked):
            state.resume()
        return {"state": self._state()}

    async def finish(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Complete the leases under way, deliver all submissions, end."""
        self._run_state.finish("the owner said finish")
        return {"state": self._state(), "waiting": self._parts.outbox.waiting()}

    async def slow(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Switch to the slow caps, or back. `slow`: None: their hours count again."""
        slow = asked.get("slow")
        if slow is not None and not isinstance(slow, bool):
            raise BadConfig("slow must be true, false or null")
        caps = self._parts.caps_watch
        await caps.switch(slow)
        return {"slow": caps.caps.slow, "caps": caps.caps.now.facts()}

    async def caps(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Change caps until the node ends, and return those in force. `changes`: texts by cap, as `config set` takes
        them; none: no limit. `gpu`: devices whose duty is changed; see `pause`."""
        changes, watch, engines = asked.get("changes") or {}, self._parts.caps_watch, self._parts.fleet.engines
        if not isinstance(changes, dict) or not all(isinstance(text, str) for text in changes.values()):
            raise BadConfig("changes must be texts by the name of a cap")
        watch.caps.change(changes, [engines[number].device_name for number in self._numbers_of(asked)])
        await watch.refresh()
        return {
            **watch.caps.now.facts(),
            "devices": [{"device": row["device"], "duty": row["duty"]} for row in await self._engines()],
            "changed": "until the node ends; `echo2-node config set` keeps a cap" if changes else "",
        }

    async def privacy(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what this node tells of itself, and how peers reach it. `forget`: tell neither name nor
        team nor device from now on."""
        if asked.get("forget") is True:
            self._parts.connectivity.forget()
        engine_class = self._parts.fleet.probed.engine_class if self._parts.fleet.probed else ""
        shown = self._parts.connectivity.own_words(engine_class)
        return {**shown, "reached": self._parts.connectivity.reachability.summary}

    def _states_of(self, asked: dict[str, Any]) -> list[NodeRunState]:
        """Return the states of the devices that a command names, or that of the node."""
        return [self._run_state.devices[number] for number in self._numbers_of(asked)] or [self._run_state]

    def _numbers_of(self, asked: dict[str, Any]) -> list[int]:
        """Return the numbers of the engines whose devices a command names; none: it means all. Raises `BadConfig` for a
        device that there is not."""
        named = str(asked.get("gpu") or "all")
        words = [] if named == "all" else [word.strip() for word in named.split(",")]
        names = [one.device_name for one in self._parts.fleet.engines]
        for word in words:
            if not any(names_device(word, name) for name in names):
                raise BadConfig(f"this node has no device {word}: it computes on {', '.join(names)}")
        return [number for number, name in enumerate(names) if any(names_device(word, name) for word in words)]

    @property
    def _coordinator_client(self) -> CoordinatorClient:
        return self._parts.connectivity.coordinator_client

    def _now(self) -> int:
        return self._parts.context.clock.now()

    def _state(self) -> str:
        if self._run_state.finishing:
            return "finishing"
        if all(device.paused for device in self._run_state.devices):
            return "paused"
        return "working" if self._parts.rollouts.working else "waiting"

    def _blocking_reason(self) -> str:
        """Return the one rule that blocks work now, with what else the owner should know of it; empty: none does."""
        rule = self._blocking_rule()
        more = [self._coordinator_client.keeps_trying(), self._run_state.no_fetching]
        if not rule or all(device.paused for device in self._run_state.devices) or self._run_state.finishing:
            return rule
        return "; ".join([rule, *filter(None, more)])

    def _blocking_rule(self) -> str:
        devices = self._run_state.devices
        if all(device.paused for device in devices) and not self._run_state.finishing:
            return devices[0].why_paused
        if self._parts.rollouts.blocked == STARTING_REASON:
            if self._parts.fleet.probed is None:
                return f"starting: {starting_words(self._parts.config)}"
            return f"starting: {self._coordinator_client.trouble or self._parts.follower.trouble}"
        latest = self._parts.ask_keeper.latest
        if latest is not None and self._stands_by():
            return f"no lease: {place_text(latest.answer)}"
        return self._parts.rollouts.blocked

    def _stands_by(self) -> bool:
        """Tell whether the last refusal is that the node stands by, and the run's own answer agrees: it says how the
        node becomes active."""
        latest, refusals = self._parts.ask_keeper.latest, self._parts.rollouts.refusals
        blocked = self._parts.rollouts.blocked.startswith("no lease: ")
        standing_by = latest is not None and latest.answer.place == "standby"
        return standing_by and blocked and bool(refusals) and refusals[-1].code == STANDBY


async def _answered(request: Awaitable[T]) -> T:
    """Return the coordinator's answer. Raises `RefusedByRun`, and `ValueError` where it gives none."""
    try:
        return await request
    except RequestRefused as error:
        raise RefusedByRun(str(error)) from error
    except P2PError as error:
        raise ValueError(f"the coordinator does not answer: {error}") from error


def _run_facts(runspec: Verified[RunSpec] | None, peer: str) -> dict[str, Any]:
    """Return the run's name, its page, and the part of the page about the node `peer`; None: they are not known."""
    if runspec is None:
        return {"run": None, "page": None, "permalink": None}
    spec = runspec.value
    return {"run": spec.name, "page": page_address(spec), "permalink": permalink(spec, peer)}


def _payload_facts(payloads: PayloadFetcher) -> dict[str, Any]:
    taken = [{"era": era, "version": version, "nbytes": nbytes} for (era, version), nbytes in payloads.taken.items()]
    return {"payload_bytes": payloads.taken_bytes, "payloads": taken}


def _lag(current: LoadedVersion | None, newest: Head | None) -> int | None:
    """Return the versions between the one loaded and the newest one heard; None: see `status`."""
    return newest.version - current.version if newest and current and newest.era == current.era else None
