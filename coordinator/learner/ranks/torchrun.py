"""`python -m echo2.coordinator.learner.ranks.torchrun`: run torchrun, and say in one sentence which rank ended it. The
coordinator shows the last sentence of a process that died; torchrun's own report ends with a rule of equals signs."""

import os
import select
import sys
import threading
import time
from typing import Final

from echo2.coordinator.learner.ranks.launch import MEETING_PORT_VARIABLE, TORCHRUN
from echo2.runtime.child_network import loopback, meeting
from echo2.runtime.hidden_folder import hide_named
from echo2.runtime.own_memory import keep_private

GRACE_SECONDS: Final = 10.0
"""Seconds in which the ranks end by themselves once the pipe is closed."""


def end_with_the_pipe() -> None:
    """End this process soon after the pipe on its stdin is closed, and its ranks with it. Rank 0, which reads the pipe,
    ends at once and in order; torchrun would wait half an hour for others that still wait to meet it."""

    def watch() -> None:
        closed = select.poll()
        closed.register(0, 0)  # a hang-up is told without being asked for, and no byte is read
        closed.poll()
        time.sleep(GRACE_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, name="pipe", daemon=True).start()


def main() -> None:
    """Run torchrun with the arguments of this process."""
    keep_private()
    hide_named()  # the ranks inherit it, and the network
    port = os.environ.get(MEETING_PORT_VARIABLE)
    if missing := meeting(int(port)) if port else loopback():
        print(f"the ranks are not kept from the network: {missing}", file=sys.stderr)
    end_with_the_pipe()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run_ranks

    os.environ[TORCHRUN] = str(os.getpid())
    try:
        run_ranks()
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        sys.exit(f"rank {rank} was the first to end, with {failure.exitcode}")


if __name__ == "__main__":
    main()
