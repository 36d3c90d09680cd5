"""The part of an engine that knows no served groups: none of its turns waits for an answer."""

from collections.abc import Sequence

from echo2.engines.engine import SampledTurn


class NeverServed:
    """`turns`, `answer` and `idle` of engines.engine.Engine."""

    def turns(self) -> list[SampledTurn]:
        """Return none."""
        return []

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """Do nothing: no row waits."""

    @property
    def idle(self) -> bool:
        """Return False: a step always takes the groups further."""
        return False
