"""Try attacks one after the other against one run, and measure honest nodes meanwhile.

1. Calm is measured before the first attack, for `CALM` seconds. After each flood honest nodes get `REST` seconds.
2. A flood after which honest nodes fell below its bar is tried once more, `SETTLED` seconds later, and the second try
   counts: other work of the machine may have begun meanwhile. Calm is measured anew before it.
3. Calm measured anew is at least what the first calm times the bar is. So an attack that leaves a slow run behind does
   not pass for a slow machine.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from coordinator.redteam.attack import Attack
from coordinator.redteam.attack_worker import Try
from coordinator.redteam.catalogue import ATTACKS
from coordinator.redteam.outcome import AttackRow, outcome_of
from coordinator.redteam.proving_ground import ProvingGround

CALM: Final = 5.0
REST: Final = 0.5
SETTLED: Final = 12.0
"""Seconds until the leases that a flood got have expired (proving_ground.py)."""
FIRST: Final = 180.0
"""Seconds within which honest nodes have to have their first accepted groups."""


class _Moment(NamedTuple):
    at: float
    cpu: float
    accepted: int
    refused: dict[bytes, int]


class Campaign:
    """The attacks on one run. `calm`: accepted groups of honest nodes per second, and the operator's CPU seconds per
    second, without an attack."""

    def __init__(
        self,
        ground: ProvingGround,
        *,
        quick: bool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ground, self._quick, self._clock, self._sleep = ground, quick, clock, sleep
        self.keys: list[bytes] = []
        self.calm = self.calm_cpu = 0.0

    def begin(self) -> None:
        """Wait until every honest node works, then measure calm."""
        until = self._clock() + FIRST
        while self._clock() < until:
            self.keys = self._ground.honest.figures().keys
            accepted = self._ground.accepted()
            if self.keys and all(accepted.get(key, 0) >= 2 for key in self.keys):
                break
            self._sleep(0.2)
        self.calm, self.calm_cpu = self._measured()

    def _measured(self) -> tuple[float, float]:
        """Measure calm: accepted groups of honest nodes, and the operator's CPU seconds, per second."""
        before = self._moment()
        self._sleep(CALM)
        now = self._moment()
        seconds = now.at - before.at
        return (now.accepted - before.accepted) / seconds, (now.cpu - before.cpu) / seconds

    def rows(self, sentences: list[str]) -> Iterator[AttackRow]:
        """Try these attacks; yield a row for each."""
        for sentence in sentences:
            attack = ATTACKS[sentence]
            row = self._row(sentence, attack, self.calm)
            if attack.bar is not None and row.share is not None and row.share < attack.bar:
                row = self._again(sentence, attack, row)
            yield row
            self._sleep(REST if attack.seconds else 0.0)

    def _again(self, sentence: str, attack: Attack, first: AttackRow) -> AttackRow:
        """Try an attack once more (rules 2 and 3); what the first try broke stays broken."""
        self._sleep(SETTLED)
        calm = max(self._measured()[0], self.calm * (attack.bar or 0.0))
        row = self._row(sentence, attack, calm)
        told = f"second try; the first, {first.share:.2f} of calm"
        harmed, broken = first.harmed + row.harmed, first.harmed or not first.prevented
        outcome = "broken" if broken else row.outcome
        return msgspec.structs.replace(
            row, outcome=outcome, harmed=harmed, prevented=first.prevented and row.prevented,
            note="; ".join(filter(None, (row.note, told))),
        )  # fmt: skip

    def _row(self, sentence: str, attack: Attack, calm: float) -> AttackRow:
        before = self._moment()
        attackers = self._ground.attackers if attack.seconds is None else self._ground.flooders
        tried = attackers.attack(Try(sentence, self._quick))
        now = self._moment()
        seconds = now.at - before.at
        share = (now.accepted - before.accepted) / seconds / max(1e-9, calm) if attack.bar is not None else None
        harmed = sum(now.refused.get(key, 0) > before.refused.get(key, 0) for key in self.keys)
        finding = tried.finding
        return AttackRow(
            attack=sentence,
            family=attack.family,
            tried=finding.tried,
            outcome=outcome_of(attack, finding.prevented, share, harmed),
            prevented=finding.prevented,
            share=share,
            named=finding.named,
            harmed=harmed,
            attacker_cpu=tried.cpu,
            operator_cpu=max(0.0, now.cpu - before.cpu - self.calm_cpu * seconds),
            sent=tried.sent,
            received=tried.received,
            seconds=tried.seconds,
            note=finding.note,
        )

    def _moment(self) -> _Moment:
        accepted, refused = self._ground.accepted(), self._ground.refused()
        done = sum(accepted.get(key, 0) for key in self.keys)
        return _Moment(self._clock(), self._ground.cpu(), done, refused)
