"""Watch the owner: probes in threads, the rules over what they see, and a pause of the node while one blocks.

Rules
1. A probe never blocks the event loop. One that does not answer within `LOOK_LIMIT` seconds, or fails, counts as seeing
   nothing, and is tried again later.
2. A node that rests looks every `REST_SECONDS`: it has `quiet` seconds to notice.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import anyio
import anyio.to_thread
import structlog

from echo2.node.owner.owner_probes import LOOK_SECONDS, PROBE_ERRORS, Probe
from echo2.node.owner.owner_rules import Block, OwnerRules
from echo2.node.run_state import NodeRunState

LOOK_LIMIT: Final = 8.0
RETRY_SECONDS: Final = 60.0
REST_SECONDS: Final = 2.0

_log = structlog.get_logger("node")


class OwnerWatch:
    """The watch of one daemon. `local`: local time of this machine."""

    def __init__(
        self, rules: OwnerRules, probes: Sequence[Probe], run_state: NodeRunState, local: Callable[[], datetime]
    ) -> None:
        """`probes`: those that are switched on; one without a source is named in the log, and left out."""
        self._rules, self._run_state, self._local = rules, run_state, local
        self._probes = probes
        self._block: Block | None = None
        self._threads: anyio.CapacityLimiter | None = None
        run_state.on_resume = self._override

    async def run(self) -> None:
        """Watch until cancelled; a node without hours and probes has nothing to watch."""
        self._threads = anyio.CapacityLimiter(2 * len(self._probes) + 1)
        async with asyncio.TaskGroup() as tasks:
            for probe in self._probes:
                if probe.look is not None:
                    tasks.create_task(self._follow(probe, probe.look))
                elif probe.rule != "battery":
                    _log.warning("occasion cannot be seen", occasion=probe.rule, reason=probe.source)
            while self._rules.hours.spans or any(probe.look for probe in self._probes):
                self._judge()
                await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, probe: Probe, look: Callable[[], str]) -> None:
        while True:
            began = self._now()
            seen = await self._ask(probe, look)
            self._rules.note(probe.rule, seen or "", self._now())
            self._judge()
            if seen is None:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(max(0.0, began + probe.period - self._now()))
            while self._run_state.paused and self._now() < began + REST_SECONDS:  # noqa: ASYNC110 (see rule 2)
                await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, probe: Probe, look: Callable[[], str]) -> str | None:
        """Return what a probe sees; None: it fails (rule 1)."""
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                return await anyio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._threads)
        except (TimeoutError, *PROBE_ERRORS) as error:
            _log.warning("occasion cannot be seen", occasion=probe.rule, reason=str(error) or "no answer")
            return None

    def _judge(self) -> None:
        """Pause the node while a rule blocks."""
        before, self._block = self._block, self._rules.block(self._now(), self._local())
        block = self._block
        why, seconds = ("", 0.0) if block is None else (block.why, block.seconds)
        self._run_state.give_way(why, seconds, metered=self._rules.blocks("metered"))
        if block is not None and before is None:
            _log.info("the node rests", reason=block.why)
        elif block is None and before is not None:
            _log.info("the node works again")

    def _override(self) -> None:
        self._rules.override(self._local())
        self._judge()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
