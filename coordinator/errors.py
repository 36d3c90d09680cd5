"""Map the coordinator's errors to exit codes of `echo2-coord`. runtime/cli_errors.py maps the errors of the machine."""

from typing import Final

from echo2.coordinator.accounts.ledger import Tampered
from echo2.coordinator.database import InUse
from echo2.coordinator.run.run_folder import FolderInUse
from echo2.coordinator.run.signing import Untrusted
from echo2.p2p.errors import BadSignature, Stale, Unreachable
from echo2.runtime.child import ChildError
from echo2.runtime.exit_codes import Exit
from echo2.weights.errors import BadSnapshot, StoreBusy, StoreCorrupt

_CODES: tuple[tuple[tuple[type[BaseException], ...], Exit], ...] = (
    ((Untrusted, BadSignature, Stale, Tampered), Exit.TRUST),
    ((FolderInUse, StoreBusy, InUse), Exit.TEMPORARY),
    ((BadSnapshot, StoreCorrupt), Exit.CONFIG),
    ((Unreachable,), Exit.UNREACHABLE),
)


_OF_CHILDREN: Final = {"CheckpointError": Exit.CONFIG}
"""Errors that the learner's process reports by the name of their class."""


def own_code(error: BaseException) -> Exit | None:
    """Return the exit code of a coordinator error; None for any other error."""
    if isinstance(error, ChildError):
        return _OF_CHILDREN.get(error.kind)
    return next((code for types, code in _CODES if isinstance(error, types)), None)
