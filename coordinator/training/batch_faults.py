"""Decide whether the groups of a batch at which the learner failed are set aside. Pure: events in, decisions out.

Rules
1. After an error a new learner process gets the same batch once more; a second error sets its groups aside.
2. A death counts against a batch only if the learner had begun to compute it and was not told to end. The third such
   death in a row, without a step between, sets its groups aside.
3. A failure to open the learner, a full disk and a missing device count against no batch. A failure to open it and an
   error of the machine also withdraw the last charge, since the same fault may have caused that.
4. A step beyond all earlier ones clears the charges, and so does a charge against another batch. A step that repeats
   one undone by a fall-back to an older checkpoint clears nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

MOST_ERRORS: Final = 2
"""Errors after which the groups of a batch are set aside (rule 1)."""
MOST_DEATHS: Final = 3
"""Deaths after which the groups of a batch are set aside (rule 2)."""


@dataclass(frozen=True)
class Charges:
    """The charges against one batch. `batch`: the ids of its groups."""

    batch: frozenset[bytes] = frozenset()
    errors: int = 0
    deaths: int = 0

    @property
    def guilty(self) -> bool:
        """Whether the charges are enough to set the groups aside."""
        return self.errors >= MOST_ERRORS or self.deaths >= MOST_DEATHS


class BatchFaults:
    """The charges against the batch that the learner computes or failed at last."""

    def __init__(self) -> None:
        self._reached = (0, 0)
        self._charges = self._before = Charges()

    def on_opening(self, era: int, step: int) -> None:
        """Record the era and step of a learner that was opened."""
        self._reached = max(self._reached, (era, step))

    def on_failure(self, batch: Iterable[bytes]) -> bool:
        """Charge an error to `batch`; return whether its groups are set aside (rule 1)."""
        charges = self._against(batch)
        return self._charge(replace(charges, errors=charges.errors + 1))

    def on_death(self, batch: Iterable[bytes]) -> bool:
        """Charge a death during `batch`; return whether its groups are set aside (rule 2)."""
        charges = self._against(batch)
        return self._charge(replace(charges, deaths=charges.deaths + 1))

    def excuse(self) -> None:
        """Withdraw the last charge: the machine was at fault (rule 3)."""
        self._charges = self._before

    def on_step(self, step: int) -> bool:
        """Record a step of the present era; return whether it is beyond all earlier ones (rule 4)."""
        era, reached = self._reached
        if step <= reached:
            return False
        self._reached = (era, step)
        self._charges = self._before = Charges()
        return True

    def _against(self, batch: Iterable[bytes]) -> Charges:
        named = frozenset(batch)
        return self._charges if self._charges.batch == named else Charges(named)

    def _charge(self, charges: Charges) -> bool:
        self._before = self._charges
        self._charges = Charges() if charges.guilty else charges
        return charges.guilty
