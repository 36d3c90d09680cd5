"""Serve the operator's commands over the run folder's local socket: `pause`, `resume`, `keys`, `remark`,
`rollback`, `verdict`, `payout`, `witnesses`, `finish`, `settings`.

Only the owner of the run folder can open this socket, while the page is public.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from echo2.coordinator.training.run_watch import Watch
from echo2.runtime.control_client import NotYours, socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.errors import LocalFault

MOST_WHY = 300
"""Most characters of the operator's reason for a pause; the page shows it."""


class OperatorSocket:
    """The server of the commands. `home`: the run folder. `renew`: loads the folder's newest Root and returns its
    serial. `remark`: records a remark on a key (coordinator/nodes/operator_remarks.py) from word, peer id and
    reason, and returns the key's new state as a sentence. `roll_back`: orders a version (None: the best) to be
    published again with a factor of the learning rate (training/guarding.py), and returns a sentence. `on_verdict`: has
    a verdict checked again or reversed (submissions/verdict_commands.py) by word, lease and reason, and returns a
    sentence. `pay`: writes an entry about a payment (payouts/payout_book.py) by kind and facts in hexadecimal digits,
    and returns its time, ms. `payments_wait`: returns why payments wait, empty if they do not, and the newest head of
    the ledger that a node told this process (publishing/head_witnesses.py). `finish`: ends the run,
    and returns its last step; `change`: changes settings by words "section.key=value" and removed keys, and returns
    sentences (training/live_settings.py)."""

    def __init__(
        self,
        home: Path,
        watch: Watch,
        renew: Callable[[], Awaitable[int]] | None = None,
        remark: Callable[[str, str, str], Awaitable[str]] | None = None,
        roll_back: Callable[[int | None, float], str] | None = None,
        on_verdict: Callable[[str, str, str], Awaitable[str]] | None = None,
        pay: Callable[[str, str], Awaitable[int]] | None = None,
        payments_wait: Callable[[], tuple[str, int]] | None = None,
        finish: Callable[[], int] | None = None,
        change: Callable[[Sequence[str], Sequence[str]], Awaitable[list[str]]] | None = None,
    ) -> None:
        self._watch = watch
        self._renew = renew
        self._remark = remark
        self._roll_back = roll_back
        self._on_verdict = on_verdict
        self._pay = pay
        self._payments_wait = payments_wait
        self._finish = finish
        self._change = change
        commands: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "keys": self._keys,
            "remark": self._take_remark,
            "rollback": self._rolled_back,
            "verdict": self._verdict,
            "payout": self._payout,
            "witnesses": self._witnesses,
            "finish": self._end_run,
            "settings": self._settings,
        }
        self.server = ControlSocket(socket_path(home), commands, logger="coordinator")

    async def run(self) -> None:
        """Serve until cancelled. Raises `LocalFault` if the socket or its folder belongs to another user."""
        try:
            await self.server.run()
        except NotYours as error:
            raise LocalFault(str(error)) from error

    async def _pause(self, asked: dict[str, Any]) -> dict[str, Any]:
        why = asked.get("why", "")
        if not isinstance(why, str) or len(why) > MOST_WHY:
            raise ValueError(f"the reason is a text of at most {MOST_WHY} characters")
        self._watch.stop(why.encode(errors="replace").decode())  # a shell may pass bytes that are not UTF-8
        await self._watch.durable()
        return {"paused": True}

    async def _resume(self, asked: dict[str, Any]) -> dict[str, Any]:
        was_paused = self._watch.resume()
        await self._watch.durable()
        return {"paused": False, "was_paused": was_paused}

    async def _keys(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._renew is None:
            raise ValueError("this coordinator cannot change its keys while it runs: restart it")
        try:
            return {"serial": await self._renew()}
        except LocalFault as error:
            raise ValueError(str(error)) from error

    async def _end_run(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._finish is None:
            raise ValueError("this coordinator has no learner")
        try:
            last = self._finish()
        except LocalFault as error:
            raise ValueError(str(error)) from error
        await self._watch.durable()
        return {"last": last}

    async def _settings(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = [asked.get(name, []) for name in ("assigned", "removed")]
        fits = all(isinstance(part, list) and all(isinstance(word, str) for word in part) for part in words)
        if self._change is None or not fits or not any(words):
            raise ValueError("it needs two lists of texts: assigned (section.key=value) and removed (section.key)")
        try:
            return {"said": await self._change(*words)}
        except LocalFault as error:
            raise ValueError(str(error)) from error

    async def _take_remark(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = [asked.get(name) for name in ("word", "node", "why")]
        if self._remark is None or not all(isinstance(word, str) for word in words):
            raise ValueError("a remark needs three texts: word, node (a peer id) and why (a reason)")
        try:
            return {"said": await self._remark(*map(str, words))}
        except LocalFault as error:
            raise ValueError(str(error)) from error

    async def _verdict(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = [asked.get(name) for name in ("word", "lease", "why")]
        if self._on_verdict is None or not all(isinstance(word, str) for word in words):
            raise ValueError("it needs three texts: word (rerun or reverse), lease and why (a reason)")
        try:
            return {"said": await self._on_verdict(*map(str, words))}
        except LocalFault as error:
            raise ValueError(str(error)) from error

    async def _payout(self, asked: dict[str, Any]) -> dict[str, Any]:
        kind, facts = asked.get("kind"), asked.get("facts")
        if self._pay is None or not isinstance(kind, str) or not isinstance(facts, str):
            raise ValueError("a payment's entry needs two texts: kind, and facts as hexadecimal digits")
        try:
            return {"at": await self._pay(kind, facts)}
        except LocalFault as error:
            raise ValueError(str(error)) from error

    async def _witnesses(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._payments_wait is None:
            raise ValueError("this coordinator hears no nodes")
        why, newest = self._payments_wait()
        return {"wait": why, "newest": newest}

    async def _rolled_back(self, asked: dict[str, Any]) -> dict[str, Any]:
        version, factor = asked.get("version"), asked.get("factor", 1.0)
        fits = version is None or (isinstance(version, int) and not isinstance(version, bool) and version >= 0)
        if self._roll_back is None or not fits or not isinstance(factor, int | float) or not 0 < factor <= 1000:
            raise ValueError("a rollback needs a version (or none: the best) and a factor of the rate above 0")
        try:
            said = self._roll_back(version, float(factor))
        except LocalFault as error:
            raise ValueError(str(error)) from error
        await self._watch.durable()
        return {"said": said}
