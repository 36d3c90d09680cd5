"""The edge of the command: whatever went wrong becomes one line on stderr and an exit code.

1. The message of a fault of ours names the fix; it is printed as it is. A foreign error is an internal fault.
2. `ECHO2_DEBUG=1` shows the traceback below the line.
3. Of several errors that ended a task group, the first that a person can do something about is told.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable

from coordinator.authority import Untrusted
from coordinator.database import InUse
from coordinator.folder import Busy
from p2p.errors import BadSignature, Stale, Unreachable
from runtime.errors import DiskFull, LocalFault
from runtime.exception_groups import leaves
from runtime.exit_codes import Exit
from weights.errors import BadSnapshot, StoreBusy, StoreCorrupt

DEBUG = "ECHO2_DEBUG"
_CODES: tuple[tuple[tuple[type[BaseException], ...], Exit], ...] = (
    ((KeyboardInterrupt,), Exit.INTERRUPTED),
    ((Untrusted, BadSignature, Stale), Exit.TRUST),
    ((Busy, DiskFull, StoreBusy, InUse), Exit.TEMPORARY),
    ((LocalFault, BadSnapshot, StoreCorrupt), Exit.CONFIG),
    ((Unreachable,), Exit.UNREACHABLE),
)


def guarded(command: Callable[[], int | None]) -> int:
    """Run `command`; its exit code: what it returned, or that of its error. Nothing but SystemExit leaves it."""
    try:
        return command() or Exit.OK
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        fault, code = _foremost(error)
        tell(_line(fault, code))
        if os.environ.get(DEBUG):
            traceback.print_exception(error)
        return code


def tell(line: str) -> None:
    """One line on stderr, the program's name first."""
    print(f"echo2-coord: {' '.join(line.split())}", file=sys.stderr)


def code_of(error: BaseException) -> Exit:
    """The exit code of an error."""
    for types, code in _CODES:
        if isinstance(error, types):
            return code
    if isinstance(error, OSError):
        return {errno.EADDRINUSE: Exit.CONFIG, errno.ENOSPC: Exit.TEMPORARY, errno.EDQUOT: Exit.TEMPORARY}.get(
            error.errno or 0, Exit.INTERNAL
        )
    return Exit.INTERNAL


def _foremost(error: BaseException) -> tuple[BaseException, Exit]:
    found = [(leaf, code_of(leaf)) for leaf in leaves(error)]
    return next((pair for pair in found if pair[1] is not Exit.INTERNAL), found[0])


def _line(fault: BaseException, code: Exit) -> str:
    if code is Exit.INTERRUPTED:
        return "interrupted"
    if code is Exit.INTERNAL:
        return f"internal fault: {type(fault).__name__}: {fault} (set {DEBUG}=1 for the traceback)"
    return str(fault)
