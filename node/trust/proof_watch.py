"""Judge whether the run's ledger is proved to this node, and what follows where it is not. Pure; times in ms.

Rules
1. A proof is missing from the moment at which a Receipt that names an entry was stored, until the entry is proved. A
   head is missing from the first round in which none could be taken though one was refused, or though another peer has
   a later one, until one is taken.
2. The next head may take a period to come. So only a proof that is missing for `PERIODS` periods counts, and only after
   `ROUNDS` rounds in a row that found it missing: a node that was off first asks.
3. Then the ledger is `unproven`: work goes on, and its earnings are marked so.
4. Once a proof is missing for `STOP_MS`, or for the time of rule 2 where that is longer, no new lease is requested.
   This node must have looked for it that long, too: after an outage of days the coordinator has the time to prove
   again.
5. The period is what the coordinator tells, at most `LONGEST_PERIOD_MS`, so that no coordinator puts rule 4 off for
   long. One that tells none has `DEFAULT_PERIOD_MS`.
6. A round that finds nothing missing for too long ends all of this.
"""

from typing import Final, NamedTuple

from echo2.runtime.figures import figure
from echo2.runtime.units import DAY

PERIODS: Final = 2
ROUNDS: Final = 3
DEFAULT_PERIOD_MS: Final = 900_000
LONGEST_PERIOD_MS: Final = DAY
STOP_MS: Final = DAY


class Missing(NamedTuple):
    """Findings of a round. `receipts`: those without proof. `since`: when the oldest of them was stored.
    `heads`: why no head was taken; empty: none is missing."""

    receipts: int = 0
    since: int | None = None
    heads: str = ""


class Proofs(NamedTuple):
    """The judgement. `unproven`: a sentence; empty: nothing is missing for too long. `withheld`: why no new lease is
    requested; empty: leases are requested."""

    unproven: str = ""
    withheld: str = ""


class ProofWatch:
    """The judgement over the rounds of one process. `proofs`: the present one."""

    def __init__(self) -> None:
        self.proofs = Proofs()
        self._heads_since: int | None = None
        self._rounds = 0
        self._looked_since = 0
        """Time of the first of these rounds."""

    def judge(self, missing: Missing, every: int | None, now: int) -> Proofs:
        """Take the result of a round; return the judgement. `every`: the period that the coordinator tells."""
        self._heads_since = (self._heads_since or now) if missing.heads else None
        began = [at for at in (missing.since, self._heads_since) if at is not None]
        age, allowed = (
            max((now - at for at in began), default=-1),
            PERIODS * min(every or DEFAULT_PERIOD_MS, LONGEST_PERIOD_MS),
        )
        self._rounds = self._rounds + 1 if age > allowed else 0
        if self._rounds <= 1:
            self._looked_since = now
        if self._rounds < ROUNDS:
            self.proofs = Proofs()
        else:
            unproven = _sentence(missing, age)
            stopped = min(age, now - self._looked_since) > max(STOP_MS, allowed)
            self.proofs = Proofs(unproven, f"no new lease is requested: {unproven}" if stopped else "")
        return self.proofs


def _sentence(missing: Missing, age: int) -> str:
    hours = figure(age / 3_600_000)
    lacks = [f"{missing.receipts} of this node's receipts have no proof"] if missing.receipts else []
    lacks += [f"no head of the ledger can be taken ({missing.heads})"] if missing.heads else []
    return f"the run's ledger is unproven for {hours} h: {' and '.join(lacks)}; ask the run's operator"
