"""Serve the operator's commands over the run folder's local socket: `pause`, `resume`, `keys`, `remark`,
`rollback`, `verdict`, `payout`, `witnesses`, `finish`, `settings`.

Only the owner of the run folder can open this socket, while the page is public.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from echo2.coordinator.training.run_watch import Watch
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import Command, ControlSocket

MOST_WHY = 300
"""Most characters of the operator's reason for a pause; the page shows it."""


class Orders(NamedTuple):
    """The functions that carry out commands; each raises `LocalFault`. `renew`: loads the folder's newest Root and
    returns its serial. `remark`: records a remark on a key (coordinator/nodes/operator_remarks.py) from word, peer id
    and reason, and returns the key's new state as a sentence. `roll_back`: orders a version (None: the best) to be
    published again with a factor of the learning rate (training/guarding.py), and returns a sentence. `on_verdict`: has
    a verdict checked again or reversed (submissions/verdict_commands.py) by word, lease and reason, and returns a
    sentence. `pay`: writes an entry about a payment (payouts/payout_book.py) by kind and facts in hexadecimal digits,
    and returns its time, ms. `payments_wait`: returns why payments wait, empty if they do not, and the newest head of
    the ledger that a node told this process (publishing/head_witnesses.py). `finish`: ends the run, and returns its
    last step. `change`: changes settings by words "section.key=value" and removed keys, and returns sentences
    (training/live_settings.py)."""

    renew: Callable[[], Awaitable[int]]
    remark: Callable[[str, str, str], Awaitable[str]]
    roll_back: Callable[[int | None, float], str]
    on_verdict: Callable[[str, str, str], Awaitable[str]]
    pay: Callable[[str, str], Awaitable[int]]
    payments_wait: Callable[[], tuple[str, int]]
    finish: Callable[[], int]
    change: Callable[[Sequence[str], Sequence[str]], Awaitable[list[str]]]


class OperatorSocket(ControlSocket):
    """The server of the commands. `home`: the run folder."""

    def __init__(self, home: Path, watch: Watch, orders: Orders) -> None:
        self._watch, self._orders = watch, orders
        commands: dict[str, Command] = {
            "pause": self._pause,
            "resume": self._resume,
            "keys": self._keys,
            "remark": self._remark,
            "rollback": self._roll_back,
            "verdict": self._verdict,
            "payout": self._payout,
            "witnesses": self._witnesses,
            "finish": self._finish,
            "settings": self._settings,
        }
        super().__init__(socket_path(home), commands, logger="coordinator")

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
        return {"serial": await self._orders.renew()}

    async def _finish(self, asked: dict[str, Any]) -> dict[str, Any]:
        last = self._orders.finish()
        await self._watch.durable()
        return {"last": last}

    async def _settings(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = [asked.get(name, []) for name in ("assigned", "removed")]
        fits = all(isinstance(part, list) and all(isinstance(word, str) for word in part) for part in words)
        if not fits or not any(words):
            raise ValueError("it needs two lists of texts: assigned (section.key=value) and removed (section.key)")
        return {"said": await self._orders.change(*words)}

    async def _remark(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"said": await self._orders.remark(*_texts(asked, "word", "node", "why"))}

    async def _verdict(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"said": await self._orders.on_verdict(*_texts(asked, "word", "lease", "why"))}

    async def _payout(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"at": await self._orders.pay(*_texts(asked, "kind", "facts"))}

    async def _witnesses(self, asked: dict[str, Any]) -> dict[str, Any]:
        why, newest = self._orders.payments_wait()
        return {"wait": why, "newest": newest}

    async def _roll_back(self, asked: dict[str, Any]) -> dict[str, Any]:
        version, factor = asked.get("version"), asked.get("factor", 1.0)
        fits = version is None or (isinstance(version, int) and not isinstance(version, bool) and version >= 0)
        if not fits or not isinstance(factor, int | float) or not 0 < factor <= 1000:
            raise ValueError("a rollback needs a version (or none: the best) and a factor of the rate above 0")
        said = self._orders.roll_back(version, float(factor))
        await self._watch.durable()
        return {"said": said}


def _texts(asked: dict[str, Any], *names: str) -> list[str]:
    """Return the texts that a command has under `names`."""
    texts = [asked.get(name) for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"it needs a text for each of {', '.join(names)}")
    return list(map(str, texts))
