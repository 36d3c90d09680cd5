"""Processes that end with the one that started them, however that one ends (`kill -9` too). Linux alone has this."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

_SET_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG, of linux/prctl.h


def signal_at_parents_death() -> Callable[[], None] | None:
    """Return a function for `subprocess.Popen(preexec_fn=...)`: the new process gets SIGTERM when the caller's process
    dies. None: not Linux, or not the main thread, as Linux sends the signal when the starting *thread* ends."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    library, parent = ctypes.CDLL(None), os.getpid()  # loaded here: little may be done between fork and exec

    def ask() -> None:
        library.prctl(_SET_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return ask
