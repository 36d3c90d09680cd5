"""Try attacks one after the other against one run, and measure honest nodes meanwhile.

Calm is measured before the first attack, for `CALM` seconds. After each flood honest nodes get `REST` seconds.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from coordinator.redteam.attack import Attack
from coordinator.redteam.attack_worker import Try
from coordinator.redteam.catalogue import ATTACKS
from coordinator.redteam.outcome import AttackRow, outcome_of
from coordinator.redteam.proving_ground import ProvingGround

CALM: Final = 5.0
REST: Final = 0.5
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

    def __init__(self, ground: ProvingGround, *, quick: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._ground, self._quick, self._clock = ground, quick, clock
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
            time.sleep(0.2)
        before = self._moment()
        time.sleep(CALM)
        now = self._moment()
        self.calm = (now.accepted - before.accepted) / (now.at - before.at)
        self.calm_cpu = (now.cpu - before.cpu) / (now.at - before.at)

    def rows(self, sentences: list[str]) -> Iterator[AttackRow]:
        """Try these attacks; yield a row for each."""
        for sentence in sentences:
            yield self._row(sentence, ATTACKS[sentence])
            time.sleep(REST if ATTACKS[sentence].seconds else 0.0)

    def _row(self, sentence: str, attack: Attack) -> AttackRow:
        before = self._moment()
        attackers = self._ground.attackers if attack.seconds is None else self._ground.flooders
        tried = attackers.attack(Try(sentence, self._quick))
        now = self._moment()
        seconds = now.at - before.at
        share = (now.accepted - before.accepted) / seconds / max(1e-9, self.calm) if attack.bar is not None else None
        harmed = sum(now.refused.get(key, 0) > before.refused.get(key, 0) for key in self.keys)
        finding = tried.finding
        return AttackRow(
            attack=sentence,
            family=attack.family,
            tried=finding.tried,
            outcome=outcome_of(attack, finding.prevented, share, harmed),
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
