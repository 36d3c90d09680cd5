"""Measure the share of audits and canaries in a run's work, in simulated time: `python -m benchmarks.trust --audits`.

`HONEST` nodes work as in benchmarks/trust/sybils.py, and `NEWCOMERS` honest keys join within an hour. Each of these
begins with a canary if an answer is at hand. Leases, canaries, audits, verdicts and the ledger are the product's, at
the shares of its defaults. Work is what nodes are paid for. An audit counts where both of its groups are accepted.
"""

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.sybils import HONEST, SybilRun
from echo2.coordinator.metrics.audit_counts import audit_view
from echo2.coordinator.metrics.canary_counts import canary_view
from echo2.coordinator.metrics.run_metrics import counts

NEWCOMERS: Final = 50
BAR: Final = 0.05


def audit_share(hours: float, seed: int = 0) -> list[Claim]:
    """Play so many hours; print the counts, and return the claim."""
    with tempfile.TemporaryDirectory() as folder:
        run = SybilRun(Path(folder), "work", seed, NEWCOMERS)
        run.play(hours)
        database = run.world.group_service.database
        canaries, audits = canary_view(database, 1, run.learner.step), audit_view(database)
        groups = counts(database, run.world.now).accepted
        run.world.close()
    row = [hours, groups, canaries.given, canaries.agreed, audits.given, audits.agreed, audits.differed, audits.share]
    print(f"{HONEST} nodes, and {NEWCOMERS} newcomers within an hour")
    bench.table(
        ["hours", "accepted groups", "canaries", "agreed", "audits", "agreed", "differed", "share of work"], [row]
    )
    return [Claim("work of audits and canaries", audits.share, "all accepted work", BAR, at_most=True)]
