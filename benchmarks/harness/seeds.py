"""Mean and standard error of a figure over the seeds of a benchmark."""

import statistics
from collections.abc import Sequence


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 for a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def shown(values: Sequence[float]) -> str:
    """Return mean and standard error for a table."""
    return f"{statistics.fmean(values):.3f} ± {standard_error(values):.3f}" if values else "–"
