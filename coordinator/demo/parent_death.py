"""Processes that end with the one that started them, however that one ends (`kill -9` too). Linux alone has this.

The request is made by a small program that then becomes the wanted one. `subprocess.Popen(preexec_fn=...)` is not used:
it forks this process with Python's handlers of forks, in which a Ctrl-C is lost.
"""

import os
import sys
import threading
from collections.abc import Sequence
from typing import Final

_CHILD_PROGRAM: Final = """\
import ctypes, os, signal, sys
for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what is ignored stays so
    signal.signal(getattr(signal, name), signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG, of linux/prctl.h
if os.getppid() != int(sys.argv[1]):  # it died before the call above
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def ending_with_parent(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a program that becomes `argv` and gets SIGTERM when this process dies. `argv` itself
    where this is not Linux, or not the main thread, as Linux sends the signal when the starting *thread* ends."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _CHILD_PROGRAM, str(os.getpid()), *argv]
