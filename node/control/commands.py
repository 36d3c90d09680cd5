"""The commands of the control socket: the owner's questions to a running node, and the owner's orders.

`status` reports the node's whole state in plain values. `why` reports the one rule that blocks work now, the last
refusals, and the last documents that failed verification.
"""

from typing import Any

from engines.versioned import VersionedEngine
from node.config import NodeConfig
from node.control.owner_socket import Command
from node.links.coordinator_client import CoordinatorClient
from node.links.reachability import Reachability
from node.rollouts.outbox import Outbox
from node.rollouts.worker import STARTING, RolloutWorker
from node.run_state import NodeRunState
from node.trust.trust_store import TrustStore
from node.versions.follower import Follower
from node.versions.payload_fetcher import PayloadFetcher
from p2p.network import Links, PayloadExchange


class ControlCommands:
    """The answers to the owner's commands: they read every part of the daemon and change only its run state."""

    def __init__(
        self,
        config: NodeConfig,
        links: Links,
        exchange: PayloadExchange,
        records: TrustStore,
        engine: VersionedEngine,
        follower: Follower,
        payloads: PayloadFetcher,
        link: CoordinatorClient,
        rollouts: RolloutWorker,
        outbox: Outbox,
        run_state: NodeRunState,
        reachability: Reachability,
    ) -> None:
        self._config, self._links, self._exchange = config, links, exchange
        self._records, self._engine = records, engine
        self._follower, self._payloads, self._link, self._rollouts = follower, payloads, link, rollouts
        self._outbox, self._run_state, self._reachability = outbox, run_state, reachability

    def commands(self) -> dict[str, Command]:
        """Return the commands by name, for `CommandServer`."""
        return {
            "status": self.status,
            "why": self.why,
            "pause": self.pause,
            "resume": self.resume,
            "finish": self.finish,
        }

    async def status(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the state in plain values; bytes are counted since the daemon's start. `lag`: versions between the one
        loaded and the newest heard of; None until both are known, and between two eras. `payloads`: bytes fetched for
        the last versions."""
        trusted, current, probed = self._records.trusted, self._engine.current, self._engine.probed
        newest = self._follower.newest
        traffic = await self._exchange.traffic()
        return {
            "state": self._state(),
            "blocked": self._blocked(),
            "run": trusted.runspec.value.name if trusted.runspec else None,
            "node": self._links.peer_id,
            "name": self._config.name,
            "device": probed.hardware if probed else None,
            "engine": probed.engine_class if probed else None,
            "era": current.era if current else None,
            "version": current.version if current else None,
            "newest": newest.version if newest else None,
            "lag": newest.version - current.version if newest and current and newest.era == current.era else None,
            "coordinator": self._link.peer,
            "way": await self._links.route(self._link.peer) if self._link.peer else None,
            "ways_failed": [{"way": route, "reason": reason} for route, reason in self._link.failures.items()],
            "reached": self._reachability.summary,
            "peers": len(await self._links.peers()),
            "leases": self._rollouts.done,
            "outbox": self._outbox.counts(),
            "engine_restarts": self._engine.deaths,
            "connections_refused": traffic.refused,
            "received_bytes": traffic.received,
            "sent_bytes": traffic.sent,
            "payload_bytes": self._payloads.taken_bytes,
            "payloads": [
                {"era": era, "version": version, "nbytes": nbytes}
                for (era, version), nbytes in self._payloads.taken.items()
            ],
        }

    async def why(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the one rule that blocks work now, and what was refused."""
        return {
            "blocked": self._blocked() or "nothing blocks: the node works",
            "refusals": [{"code": one.code, "reason": one.sentence} for one in self._rollouts.refusals],
            "groups_refused": [
                {"lease": row.lease.hex(), "code": row.code, "reason": row.reason}
                for row in self._outbox.rows(256)
                if row.state == "refused"
            ][:16],
            "not_believed": [*self._follower.refused, *self._link.lies],
        }

    async def pause(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Request no new lease, and free the device within seconds. `seconds`: length of the pause; absent: until
        resumed."""
        seconds = asked.get("seconds")
        if seconds is not None and (not isinstance(seconds, int | float) or seconds <= 0):
            raise ValueError("seconds must be a number above 0")
        self._run_state.pause(seconds)
        return {"state": self._state()}

    async def resume(self, asked: dict[str, Any]) -> dict[str, Any]:
        """End a pause."""
        self._run_state.resume()
        return {"state": self._state()}

    async def finish(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Complete the current lease, deliver, end."""
        self._run_state.finish("the owner said finish")
        return {"state": self._state(), "waiting": self._outbox.waiting()}

    def _state(self) -> str:
        if self._run_state.finishing:
            return "finishing"
        if self._run_state.paused:
            return "paused"
        return "working" if self._rollouts.working else "waiting"

    def _blocked(self) -> str:
        if self._run_state.paused and not self._run_state.finishing:
            return self._run_state.why_paused
        if self._rollouts.blocked == STARTING:
            return f"starting: {self._link.trouble or self._follower.trouble}"
        return self._rollouts.blocked
