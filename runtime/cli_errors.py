"""Report an error that ended a command: one line on stderr, and an exit code.

1. An error to which `exit_code` gives a code of its own is printed as its message, which names the fix. A foreign one
   that says something of the machine is told as such (runtime/surroundings.py), any other as an internal fault.
2. `ECHO2_DEBUG=1` shows the traceback below the line.
3. Where the report itself fails, the line says so: there is never a second traceback.
4. Of several errors that ended a task group, the first that a person can act on is reported.
"""

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec

from echo2.runtime import surroundings
from echo2.runtime.errors import DeviceMissing, DiskFull, LocalFault
from echo2.runtime.exception_groups import leaves
from echo2.runtime.exit_codes import Exit
from echo2.runtime.printable import printable

DEBUG = "ECHO2_DEBUG"

P = ParamSpec("P")
OwnCode = Callable[[BaseException], Exit | None]
"""The exit code of a command's own errors; None for any other. Called only once there is an error."""


def report_errors(program: str, own_code: OwnCode) -> Callable[[Callable[P, int | None]], Callable[P, None]]:
    """Return a decorator for the commands of `program`: a command ends with the exit code that it returned, or that of
    its error."""

    def decorate(command: Callable[P, int | None]) -> Callable[P, None]:
        @functools.wraps(command)
        def safe(*args: P.args, **kwargs: P.kwargs) -> None:
            code = run_command(lambda: command(*args, **kwargs), program, own_code)
            if code:
                raise SystemExit(code)

        return safe

    return decorate


def run_command(command: Callable[[], int | None], program: str, own_code: OwnCode) -> int:
    """Run `command` and return its exit code: the code that it returned, or that of its error. Raises only
    SystemExit."""
    try:
        return command() or Exit.OK
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        sentence, code = _report_of(error, own_code)
        print_error(program, sentence)
        if os.environ.get(DEBUG):
            traceback.print_exception(error)
        return code


def print_error(program: str, message: str) -> None:
    """Print one line on stderr, the program's name first."""
    print(f"{program}: {printable(' '.join(message.split()))}", file=sys.stderr)


def exit_code(error: BaseException, own_code: OwnCode) -> Exit:
    if (own := own_code(error)) is not None:
        return own
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, LocalFault):
        if isinstance(error, DiskFull):
            return Exit.TEMPORARY
        return Exit.NO_DEVICE if isinstance(error, DeviceMissing) else Exit.CONFIG
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return Exit.CONFIG
    told = surroundings.describe(error)
    return Exit.INTERNAL if told is None else told.code


def _report_of(error: BaseException, own_code: OwnCode) -> tuple[str, Exit]:
    """Return the sentence and the exit code of an error. Raises nothing: a broken installation is reported too."""
    try:
        fault, code = _foremost(error, own_code)
        return _sentence(fault, code), code
    except Exception as second:
        failed = f"{type(error).__name__}, of which no report could be made ({type(second).__name__})"
        return f"internal fault: {failed} (set {DEBUG}=1 for the traceback)", Exit.INTERNAL


def _foremost(error: BaseException, own_code: OwnCode) -> tuple[BaseException, Exit]:
    coded = [(leaf, exit_code(leaf, own_code)) for leaf in leaves(error)]
    return next((pair for pair in coded if pair[1] is not Exit.INTERNAL), coded[0])


def _sentence(fault: BaseException, code: Exit) -> str:
    if code is Exit.INTERRUPTED:
        return "interrupted"
    if code is Exit.INTERNAL:
        return f"internal fault: {type(fault).__name__}: {fault} (set {DEBUG}=1 for the traceback)"
    told = None if isinstance(fault, LocalFault) else surroundings.describe(fault)
    return str(fault) if told is None else told.sentence
