"""Try attacks one after the other against one run, and measure honest nodes meanwhile.

1. Calm is measured before the first attack, for `CALM` seconds. After each flood honest nodes are measured once more.
2. A flood during which honest nodes fell below its bar, or after which they fell below the least of any attack, is
   tried once more, `SETTLED` seconds later if it can hold leases. Both tries are told, and the worse one counts.
3. Calm is measured anew before the second try, since other work of the machine may have begun, and both tries are
   judged against it. It is at least what the first calm times the bar is: an attack that leaves a slow run behind does
   not pass for a slow machine.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from benchmarks.attacks.attack import Attack
from benchmarks.attacks.attack_worker import Try
from benchmarks.attacks.catalogue import ATTACKS, CONNECTIONS
from benchmarks.attacks.outcome import FLOOR, AttackRow, outcome_of
from benchmarks.attacks.proving_ground import ProvingGround

CALM: Final = 5.0
AFTER: Final = 5.0
"""Seconds for which honest nodes are measured after a flood; with `--quick`, `QUICK_AFTER`."""
QUICK_AFTER: Final = 2.0
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
        """Wait until every honest node works and the attackers are ready, then measure calm."""
        until = self._clock() + FIRST
        while self._clock() < until:
            self.keys = self._ground.honest.figures().keys
            accepted = self._ground.accepted()
            if self.keys and all(accepted.get(key, 0) >= 2 for key in self.keys):
                break
            self._sleep(0.2)
        self._ground.ready()
        self.calm, self.calm_cpu = self._measured()

    def _measured(self) -> tuple[float, float]:
        """Measure calm: accepted groups of honest nodes, and the operator's CPU seconds, per second."""
        before = self._moment()
        self._sleep(CALM)
        now = self._moment()
        return self._rate(before, now), (now.cpu - before.cpu) / (now.at - before.at)

    def rows(self, sentences: list[str]) -> Iterator[AttackRow]:
        """Try these attacks; yield a row for each."""
        for sentence in sentences:
            attack = ATTACKS[sentence]
            row = self._row(sentence, attack, self.calm)
            if _is_doubtful(attack, row):
                row = self._again(sentence, attack, row)
            yield row

    def _again(self, sentence: str, attack: Attack, first: AttackRow) -> AttackRow:
        """Try an attack once more (rules 2 and 3); what one try broke is broken."""
        if attack.family != CONNECTIONS:
            self._sleep(SETTLED)
        anew = self._measured()[0]
        calm = max(anew, self.calm * (attack.bar or 0.0))
        second = self._row(sentence, attack, calm)
        tries = (_against(first, self.calm / max(1e-9, calm)), second)
        worse = min(tries, key=_least)
        told = f"two tries: {' and '.join(f'{one.share or 0.0:.2f}' for one in tries)} of {calm:.2f} groups per second"
        harmed, prevented = first.harmed + second.harmed, first.prevented and second.prevented
        return msgspec.structs.replace(
            worse,
            outcome=outcome_of(attack, prevented, worse.share, worse.after, harmed),
            harmed=harmed,
            prevented=prevented,
            note="; ".join(filter(None, (worse.note, told))),
        )

    def _row(self, sentence: str, attack: Attack, calm: float) -> AttackRow:
        before = self._moment()
        attackers = self._ground.attackers if attack.seconds is None else self._ground.flooders
        tried = attackers.attack(Try(sentence, self._quick))
        now = self._moment()
        share = self._rate(before, now) / max(1e-9, calm) if attack.bar is not None else None
        after = self._after() / max(1e-9, calm) if attack.seconds is not None else None
        seconds = now.at - before.at
        harmed = sum(now.refused.get(key, 0) > before.refused.get(key, 0) for key in self.keys)
        finding = tried.finding
        return AttackRow(
            attack=sentence,
            family=attack.family,
            tried=finding.tried,
            outcome=outcome_of(attack, finding.is_held, share, after, harmed),
            prevented=finding.is_held,
            share=share,
            after=after,
            named=finding.named,
            harmed=harmed,
            attacker_cpu=tried.cpu,
            operator_cpu=max(0.0, now.cpu - before.cpu - self.calm_cpu * seconds),
            sent=tried.sent,
            received=tried.received,
            seconds=tried.seconds,
            note=finding.note,
        )

    def _after(self) -> float:
        """Measure honest nodes now that a flood has ended; return their accepted groups per second."""
        before = self._moment()
        self._sleep(QUICK_AFTER if self._quick else AFTER)
        return self._rate(before, self._moment())

    @staticmethod
    def _rate(before: _Moment, now: _Moment) -> float:
        """Return accepted groups of honest nodes per second between two moments."""
        return (now.accepted - before.accepted) / max(1e-9, now.at - before.at)

    def _moment(self) -> _Moment:
        accepted, refused = self._ground.accepted(), self._ground.refused()
        done = sum(accepted.get(key, 0) for key in self.keys)
        return _Moment(self._clock(), self._ground.cpu(), done, refused)


def _is_doubtful(attack: Attack, row: AttackRow) -> bool:
    """Tell whether an attack is tried once more (rule 2)."""
    low = attack.bar is not None and row.share is not None and row.share < attack.bar
    return low or (row.after is not None and row.after < FLOOR)


def _against(row: AttackRow, factor: float) -> AttackRow:
    """Return a row whose shares are of another calm."""
    return msgspec.structs.replace(
        row,
        share=None if row.share is None else row.share * factor,
        after=None if row.after is None else row.after * factor,
    )


def _least(row: AttackRow) -> float:
    return min(one for one in (row.share, row.after, 1.0) if one is not None)
