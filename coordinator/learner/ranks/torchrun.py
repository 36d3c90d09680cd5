"""`python -m echo2.coordinator.learner.ranks.torchrun`: run torchrun, and say in one sentence which rank ended it. The
coordinator shows the last sentence of a process that died; torchrun's own report ends with a rule of equals signs."""

import os
import sys

from echo2.coordinator.learner.ranks.launch import MEETING_PORT_VARIABLE, TORCHRUN
from echo2.runtime.child_network import loopback, meeting
from echo2.runtime.hidden_folder import hide_named


def run() -> None:
    """Run torchrun with the arguments of this process."""
    hide_named()  # the ranks inherit it, and the network
    port = os.environ.get(MEETING_PORT_VARIABLE)
    if missing := meeting(int(port)) if port else loopback():
        print(f"the ranks are not kept from the network: {missing}", file=sys.stderr)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ[TORCHRUN] = str(os.getpid())
    try:
        main()
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        sys.exit(f"rank {rank} was the first to end, with {failure.exitcode}")


if __name__ == "__main__":
    run()
