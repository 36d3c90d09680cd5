"""The learning curves: what is learned, from which base model, by which settings."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Curve(NamedTuple):
    """One curve. `heading`: of its picture. `warm_batches`, `warm_rate`: supervised steps on demonstrations before the
    run, `WARM_BATCH` each; `slip`: share of them that are any legal move. `run`, `learner`: settings. `measured`:
    whether exploitability is measured too."""

    heading: str
    task: str
    warm_batches: int
    slip: float
    run: Mapping[str, Any]
    learner: Mapping[str, Any]
    warm_rate: float = 2e-5
    measured: bool = False


WARM_BATCH: Final = 16
_COMMON: Final = {"staleness": 4, "heldout": 128, "evaluate_every": 10, "batch_groups": 6}
CURVES: Final[Mapping[str, Curve]] = {
    "gcd": Curve(
        "SmolLM2-135M learns the greatest common divisor (reasoning-gym)",
        "gym:gcd",
        warm_batches=20,
        slip=0.0,
        run={**_COMMON, "kind": "single", "limit": 8, "group_size": 8, "steps": 60},
        learner={"learning_rate": 1e-5, "warmup_steps": 2},
    ),
    "kuhn": Curve(
        "SmolLM2-135M learns Kuhn poker against a blind opponent",
        "poker:kuhn,opponent=blind",
        warm_batches=100,
        slip=0.7,
        run={**_COMMON, "kind": "served", "limit": 12, "group_size": 12, "evaluate_every": 6, "steps": 24},
        learner={
            "learning_rate": 1e-5,
            "warmup_steps": 2,
            "advantage": "mean",
            "kl_coefficient": 0.2,
            "kl_groups": "all",
        },
        warm_rate=4e-5,
        measured=True,
    ),
}
"""By name. A task of the run's name is warmed up on demonstrations: of gcd right answers, so that answers have their
form; of Kuhn moves of which `slip` are any legal one and the others an equilibrium's."""
