"""`python -m echo2.coordinator.learner`: run the learner behind a pipe to the daemon (messages.py, runtime/child.py).
Started by torchrun with several ranks, rank 0 has the pipe, and the others obey it (rank_orders.py)."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from echo2.coordinator.learner.ranks.launch import TORCHRUN
from echo2.runtime.child_budgets import confine
from echo2.runtime.child_network import meeting
from echo2.runtime.child_pipe import Handlers, Pipe
from echo2.runtime.hidden_folder import hide_named
from echo2.runtime.own_memory import keep_private

TORCHRUN_POLL_SECONDS: Final = 0.5
"""Seconds between two looks at whether torchrun is there."""


def main(alter: Callable[[Handlers], Handlers] = lambda calls: calls) -> NoReturn:
    """Serve until the parent ends. The pipe is set up first, so that output of an import cannot get into it. `alter`:
    function from the learner's calls to those that are served."""
    keep_private()
    hide_named()
    ranks, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    if rank:
        _follow()
    pipe = Pipe()
    _confine("learner" if ranks == 1 else "learner rank")
    from transformers.utils import logging

    from echo2.coordinator.learner.call_handlers import LearnerHandlers
    from echo2.coordinator.learner.messages import BATCH_BEGUN_METHOD, RANKS_MET_METHOD, Begun, Met
    from echo2.coordinator.learner.trainer import LocalTrainer, TrainerOf

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    trainer_of: TrainerOf = LocalTrainer
    if ranks > 1:
        from echo2.coordinator.learner.ranks.ranked_trainer import RankedTrainers

        trainer_of = RankedTrainers(_end, lambda ranks: pipe.notify(RANKS_MET_METHOD, Met(ranks=ranks)))
    handlers = LearnerHandlers(lambda step: pipe.notify(BATCH_BEGUN_METHOD, Begun(step=step)), trainer_of)
    pipe.serve(alter(handlers.by_method()))


def _confine(kind: str) -> None:
    """Keep this process to its budget, before it starts threads."""
    if missing := confine(kind, lambda: meeting(int(os.environ["MASTER_PORT"]))):
        print(f"the {kind} is not kept from the network: {missing}", file=sys.stderr)


def _follow() -> NoReturn:
    """Obey rank 0 until it ends. The pipe, which torchrun passes on, is not this rank's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    _confine("learner rank")
    torchrun = int(os.environ.get(TORCHRUN, os.getppid()))
    threading.Thread(target=_end_with, args=(torchrun,), name="torchrun", daemon=True).start()
    try:
        from echo2.coordinator.learner.ranks.rank_group import RankGroup
        from echo2.coordinator.learner.ranks.rank_orders import follow

        follow(RankGroup())
    except Exception as error:
        _end(error)
    os._exit(0)


def _end_with(torchrun: int) -> NoReturn:
    """End this rank once torchrun, its parent, has ended. Once the ranks have met, their connections tell; while they
    meet, a rank would wait half an hour for one that never comes."""
    while os.getppid() == torchrun:
        time.sleep(TORCHRUN_POLL_SECONDS)
    os._exit(1)


def _end(error: Exception) -> NoReturn:
    """End this rank, and so all (rank_orders.py, rule 3), in the middle of any computation of another thread. Where its
    device failed, say so for the coordinator: no group is at fault."""
    traceback.print_exception(error, file=sys.stderr)
    if "torch" in sys.modules:
        from echo2.coordinator.learner.messages import DEVICE_LOST
        from echo2.engines.transformers.lost_device import lost_device

        if why := lost_device(error):
            print(f"{DEVICE_LOST}: {why}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
