"""Decide when a full checkpoint is due: as often as costs a given share of the time. Pure."""


class CheckpointPace:
    """The pace of a session. `share`: of the time that checkpoints may take; from 1 on, each export has one."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._worked = 0.0
        self._cost: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether the next export ends with a checkpoint: always before one was measured."""
        return self._share >= 1 or self._cost is None or self._worked * self._share >= self._cost

    def worked(self, seconds: float) -> None:
        """Note the seconds of a step, its export included."""
        self._worked += seconds

    def wrote(self, seconds: float) -> None:
        """Note the seconds that a checkpoint took."""
        self._worked, self._cost = 0.0, seconds
