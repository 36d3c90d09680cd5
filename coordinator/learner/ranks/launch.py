"""Build the command that starts the learner's process, or its ranks.

1. Several ranks are started by torchrun, which passes the pipe on; rank 0 alone uses it
   (coordinator/learner/__main__.py).
2. Ranks of one host meet and talk on loopback, on Linux in a network of their own
   (coordinator/learner/ranks/torchrun.py). Ranks of several meet at the rendezvous; the operator starts those of the
   other hosts (docs/several-gpus.md).
3. torchrun gets no folder for logs: by default each start would leave one in the system's temporary folder for good.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from echo2.runtime.child import Child
from echo2.runtime.stand_ins import process_command

LEARNER: Final = "echo2.coordinator.learner"
TORCHRUN: Final = "LEARNER_TORCHRUN_PID"
"""The environment variable in which torchrun tells its ranks its process id, so that they end with it."""
MEETING_PORT_VARIABLE: Final = "LEARNER_MEETING_PORT"
"""The environment variable in which torchrun is told the port at which ranks of several hosts meet."""
_LOOPBACK: Final = "127.0.0.1"
_RETURNED_MEMORY_BYTES: Final = 1 << 20
"""Bytes from which glibc returns freed memory at once. Ranks on a CPU collect and drop layers all the time; by default
glibc raises this to 32 MiB and keeps what was dropped, which was as much as the model."""


class RankLayout(NamedTuple):
    """The ranks of a learner. `local`: ranks of this host. `rendezvous`: HOST:PORT of this host, with more than one
    host."""

    local: int = 1
    hosts: int = 1
    rendezvous: str = ""

    @property
    def elsewhere(self) -> str:
        """The ranks of other hosts, for a sentence; "" if there are none."""
        if self.hosts == 1:
            return ""
        return f"the ranks of {self.hosts - 1} other host{'s' * (self.hosts > 2)} at {self.rendezvous}"

    @property
    def torchrun(self) -> list[str]:
        """The arguments of Python that start the ranks of this host; none for a single rank."""
        if self.local == self.hosts == 1:
            return []
        host, _, port = self.rendezvous.rpartition(":")
        meeting = [f"--rdzv-endpoint={_LOOPBACK}:0", "--rdzv-backend=c10d", f"--local-addr={_LOOPBACK}"]
        if self.hosts > 1:
            meeting = [f"--master-addr={host}", f"--master-port={port}", "--node-rank=0"]
        counts = [f"--nnodes={self.hosts}", f"--nproc-per-node={self.local}", "--max-restarts=0"]
        return [
            "-m",
            "echo2.coordinator.learner.ranks.torchrun",
            *meeting,
            *counts,
            "--monitor-interval=0.1",
            "--shutdown-timeout=5",
            f"--log-dir={os.devnull}",
        ]


ONE_RANK: Final = RankLayout()


def learner_process(
    threads: int = 1,
    ranks: RankLayout = ONE_RANK,
    env: Mapping[str, str] | None = None,
) -> Child:
    """Return the learner's process, not started yet. `threads`: CPU threads that each rank computes with. `env`:
    further variables."""
    env = {"OMP_NUM_THREADS": str(threads), **(env or {})}
    if ranks.torchrun:
        env["MALLOC_MMAP_THRESHOLD_"] = str(_RETURNED_MEMORY_BYTES)
        env["PYTHONSAFEPATH"] = "1"  # torchrun starts its workers without -P
        if ranks.hosts == 1:
            env["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        else:
            env[MEETING_PORT_VARIABLE] = ranks.rendezvous.rpartition(":")[2]
    python, safe, *module = process_command("learner", LEARNER)
    return Child([python, safe, *ranks.torchrun, *module], name="learner", env=env)
