"""The two daemons with paced model processes: `python -m benchmarks.paced.programs coordinator|node ARGUMENTS`.

Everything but the module of the learner, or of the engine, is as `echo2-coord` and `echo2-node` start it.
"""

import sys
from functools import partial

from benchmarks.paced import paced_host, paced_learner


def coordinator() -> None:
    """Run `echo2-coord` with slow steps."""
    from echo2.coordinator import cli, daemon

    names = vars(daemon)
    names["learner_process"] = partial(names["learner_process"], module=paced_learner.MODULE)
    cli.main()


def node() -> None:
    """Run `echo2-node` with an engine of a given rate."""
    from echo2.node import cli, engine_child

    names = vars(engine_child)
    names["EngineProcess"] = partial(names["EngineProcess"], module=paced_host.MODULE)
    cli.main()


if __name__ == "__main__":
    which = sys.argv.pop(1)
    {"coordinator": coordinator, "node": node}[which]()
