"""Attacks on a run with a market by the method `market`: asks that no node should send, and keys that ask for nothing.

Rules
1. A false ask is held if its answer is a refusal with a sentence, the ask that stands is the same as before, and the
   key has no more entries than one sealed and one opened ask.
2. Free keys may leave what the market allows keys without accepted work (epochs/free_places.py): sealed asks, each an
   entry. More than that is a break.
3. A node that drops leases gains what its best shape of groups earns beyond the mean of all shapes, per CPU second.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from benchmarks.attacks.asking import ASK, SALT, coming, sealed, told
from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.engine_place import EnginePlace
from benchmarks.attacks.flood_keys import Key
from benchmarks.plays import direct
from echo2.coordinator.calibration.cost_fit import SAMPLES, GroupShape, ShapeTime, costs_of, fit, shapes
from echo2.coordinator.calibration.cost_times import NO_END
from echo2.coordinator.epochs.free_places import FREE_ASKS, FREE_OF_PARTY
from echo2.engines.context import context_of
from echo2.engines.engine import Job
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.group_weights import whole_weight
from echo2.protocol.market import MarketRequest, MarketResponse
from echo2.protocol.requests import Refusal
from echo2.protocol.sealed_asks import MOST_ASK
from echo2.weights.store import snapshot_name

PARTIES: Final = 20
KEYS_OF_PARTY: Final = 10
GAIN: Final = 2.0
"""Most CPU time per point of a shape, by that of another."""
ROUNDS: Final = 2
LONGEST: Final = 96
"""Most sampled tokens of a shape."""


@dataclass
class FalseAsks:
    """A key that sends asks which are negative, huge, of another type, too early, twice, or for another epoch."""

    answers: dict[str, str] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    entries: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Send each form once, over the sealing and the opening of one epoch."""
        key = place.key(await place.connect("false asks"))
        await key.hello()
        epoch = (await coming(key, closed=False)).epoch
        for form, fields in _FORMS.items():
            await self._try(key, form, {"epoch": epoch} | fields)
        await self._try(key, "one that was not sealed", {"epoch": epoch, "ask": ASK, "salt": SALT})
        await self._try(key, "for an epoch to come", {"epoch": epoch + 7, "sealed": bytes(32)})
        await told(key, sealed(key, epoch))
        await self._try(key, "opened while others are sealed", {"epoch": epoch, "ask": ASK, "salt": SALT})
        await self._try(key, "sealed twice", {"epoch": epoch, "sealed": bytes(32)})
        terms = await coming(key, closed=True, since=epoch - 1)
        if terms.epoch == epoch:
            await self._try(key, "another than was sealed", {"epoch": epoch, "ask": ASK + 1, "salt": SALT})
            await self._try(key, "sealed after the close", {"epoch": epoch, "sealed": bytes(32)}, ask=None)
            await told(key, MarketRequest(epoch=epoch, ask=ASK, salt=SALT))
            await self._try(key, "opened twice", {"epoch": epoch, "ask": ASK // 2, "salt": SALT}, ask=ASK)
        await self._try(key, "for an epoch that is gone", {"epoch": max(1, epoch - 1), "sealed": bytes(32)}, ask=ASK)
        await self._try(key, "a second one within the hour", {"epoch": epoch + 1, "sealed": bytes(32)}, ask=ASK)
        query = "SELECT count(*) FROM entries WHERE kind LIKE 'ask.%' AND key LIKE ?"
        self.entries = int(place.value(query, f"%:{peer_id(key.public)}:%"))

    async def _try(self, key: Key, form: str, fields: dict[str, Any], ask: int | None = None) -> None:
        """Send one request. `ask`: that stands before and after."""
        answer = await key.request("market", msgspec.msgpack.encode(fields))
        if isinstance(answer, Refusal):
            self.answers[form] = answer.code
            return
        response = decode(answer, MarketResponse)
        self.answers[form] = response.refused
        if not response.refused or response.ask != ask:
            self.taken.append(form)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Name the forms that were taken, and count the entries."""
        malformed = sum(one == "malformed" for one in self.answers.values())
        note = f"{malformed} malformed, {len(self.answers) - malformed} refused in a sentence, {self.entries} entries"
        note = "; ".join([*(f"TAKEN: {form}" for form in self.taken), f"{note}, bound 2"])
        prevented = not self.taken and self.entries <= 2 and len(self.answers) > len(_FORMS)
        return AttackFinding(tried=len(self.answers), prevented=prevented, note=note)


_FORMS: Final[dict[str, dict[str, Any]]] = {
    "negative": {"ask": -1, "salt": SALT},
    "nothing": {"ask": 0, "salt": SALT},
    "a fraction": {"ask": 0.5, "salt": SALT},
    "NaN": {"ask": float("nan"), "salt": SALT},
    "infinite": {"ask": float("inf"), "salt": SALT},
    "in words": {"ask": "0.12/h", "salt": SALT},
    "true": {"ask": True, "salt": SALT},
    "above the most": {"ask": MOST_ASK + 1, "salt": SALT},
    "of 64 bits": {"ask": (1 << 64) - 1, "salt": SALT},
    "a short salt": {"ask": ASK, "salt": b"short"},
    "a long salt": {"ask": ASK, "salt": bytes(65)},
    "a short hash": {"sealed": bytes(31)},
    "a negative epoch": {"epoch": -1, "sealed": bytes(32)},
}
"""Fault of an ask -> the fields of its request."""


@dataclass
class FreeAsks:
    """Free keys of many subnets that all seal an ask for one epoch."""

    sent: int = 0
    epochs: set[int] = field(default_factory=set)
    before: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Seal an ask under each key, in all subnets at once, and count those that became entries."""
        self.before = self._sealed(place)
        async with anyio.create_task_group() as tasks:
            for number in range(PARTIES):
                connection = await place.connect(f"asks {number}")
                tasks.start_soon(self._seal, [place.key(connection) for _ in range(KEYS_OF_PARTY)])

    async def _seal(self, keys: list[Key]) -> None:
        """Introduce the keys of a subnet, then seal an ask under each while asks are sealed."""
        for key in keys:
            await key.hello()
        for key in keys:
            terms = await coming(key, closed=False)
            await told(key, sealed(key, terms.epoch))
            self.epochs.add(terms.epoch)
            self.sent += 1

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Compare the entries that there are more of with what is allowed."""
        left = self._sealed(place) - self.before
        bound = min(FREE_ASKS * len(self.epochs), FREE_OF_PARTY * PARTIES * len(self.epochs))
        note = f"{left} asks became entries in {len(self.epochs)} epochs, bound {bound}"
        return AttackFinding(tried=self.sent, prevented=0 < left <= bound, note=note)

    @staticmethod
    def _sealed(place: EnginePlace) -> int:
        return int(place.value("SELECT count(*) FROM entries WHERE kind = 'ask.sealed'"))


@dataclass
class DroppedLeases:
    """A node that works on the shape of group alone that earns most per CPU second, and drops the others."""

    spread: float = 0.0
    gain: float = 0.0
    shapes: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Measure the run's own engine on groups of several shapes, and weigh them by Costs fitted to all."""
        await anyio.to_thread.run_sync(self._measure, place)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State the gain, and the greatest time per point by the least."""
        note = f"{self.gain:.2f} times the mean per CPU second, bound {GAIN:.0f}; dearest by cheapest {self.spread:.2f}"
        return AttackFinding(tried=self.shapes, prevented=1.0 <= self.gain <= GAIN, note=note)

    def _measure(self, place: EnginePlace) -> None:
        model, terms = place.target.model, place.terms()
        place.engine.load(model, place.target.snapshots / snapshot_name(terms.version, terms.root))
        times = [ShapeTime(one, _seconds(place, one)) for one in shapes(context_of(model), LONGEST)]
        place.spoil()
        costs = costs_of(fit(times), bytes(32), [], 0)
        points = [whole_weight(costs, one.shape.prompt, [[one.shape.completion]] * SAMPLES) for one in times]
        rates = [count / one.seconds for count, one in zip(points, times, strict=True)]
        self.shapes, self.spread = len(times), max(rates) / min(rates)
        self.gain = max(rates) * sum(one.seconds for one in times) / sum(points)


def _seconds(place: EnginePlace, shape: GroupShape) -> float:
    """Return the least CPU seconds of a group of a shape, whose samples all reach their full length."""
    job = Job(
        prompt=[3] * shape.prompt, seeds=[bytes([number]) * 16 for number in range(SAMPLES)], limit=shape.completion,
        eos=NO_END, task="reverse", task_version=1, split="train", index=0, single_turn=True,
    )  # fmt: skip
    spent = []
    for _ in range(1 + ROUNDS):
        began = time.thread_time()
        direct.generate(place.engine, job)
        spent.append(time.thread_time() - began)
    return min(spent)
