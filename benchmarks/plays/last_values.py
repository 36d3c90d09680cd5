"""Keep mean and deviation of the last values of a series."""

import math
from collections import deque


class LastValues:
    """The last values of a series, with their mean and standard deviation kept up. `most`: of them."""

    def __init__(self, most: int) -> None:
        self._values: deque[float] = deque()
        self._most, self._sum, self._squares = most, 0.0, 0.0

    def append(self, value: float) -> None:
        """Add a value; the oldest one goes where there are more than `most`."""
        self._values.append(value)
        self._sum, self._squares = self._sum + value, self._squares + value * value
        if len(self._values) > self._most:
            oldest = self._values.popleft()
            self._sum, self._squares = self._sum - oldest, self._squares - oldest * oldest

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float:
        return self._sum / len(self._values)

    @property
    def deviation(self) -> float:
        return math.sqrt(max(0.0, self._squares / len(self._values) - self.mean**2))
