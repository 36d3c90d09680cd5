"""The rail of points, over which nothing is paid: points are credited at the verdict, and are a node's from then on."""

from contextlib import nullcontext
from typing import Final, NoReturn

from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.coordinator.rails.rail_kind import RailKind
from echo2.runtime.errors import LocalFault

SENTENCE = "points are credited at the verdict: there is nothing to pay out, and payout.rail names no rail for money"


class PointsRail:
    """A rail that refuses every call."""

    async def quote(self, account: str, amount: int) -> Quote:
        """Refuse. Raises `LocalFault`."""
        self._refuse()

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        """Refuse. Raises `LocalFault`."""
        self._refuse()

    async def status(self, idempotency_key: str) -> RailAnswer:
        """Refuse. Raises `LocalFault`."""
        self._refuse()

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        """Refuse. Raises `LocalFault`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise LocalFault(SENTENCE)


POINTS_RAIL: Final = RailKind(connect=lambda settings: nullcontext(PointsRail()))
