"""Report to the service manager that started this process when it is up, and when it ends (sd_notify).

1. The manager names its socket by `NOTIFY_SOCKET`: a path, or with "@" in front a name in Linux's abstract namespace.
   Without that variable, or with an address of another kind, nobody waits: nothing is sent.
2. A report that does not arrive changes nothing here: the manager has a time limit of its own.

Source: sd_notify(3).
"""

import contextlib
import os
import socket
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"


def report_ready(status: str) -> None:
    """Report that this process is up. `status`: a few words for people."""
    _send(f"READY=1\nSTATUS={' '.join(status.split())}")


def report_stopping(status: str) -> None:
    """Report that this process ends in order. `status`: a few words for people."""
    _send(f"STOPPING=1\nSTATUS={' '.join(status.split())}")


def _send(text: str) -> None:
    place = os.environ.get(VARIABLE, "")
    if not place.startswith(("/", "@")):
        return
    address = f"\0{place[1:]}" if place.startswith("@") else place
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto(text.encode(), os.fsencode(address))
