"""The exit code of each error that ends a command of the operator. runtime/cli_errors.py knows those of the machine."""

from coordinator.database import InUse
from coordinator.run.run_folder import FolderInUse
from coordinator.run.signing import Untrusted
from p2p.errors import BadSignature, Stale, Unreachable
from runtime.exit_codes import Exit
from weights.errors import BadSnapshot, StoreBusy, StoreCorrupt

_CODES: tuple[tuple[tuple[type[BaseException], ...], Exit], ...] = (
    ((Untrusted, BadSignature, Stale), Exit.TRUST),
    ((FolderInUse, StoreBusy, InUse), Exit.TEMPORARY),
    ((BadSnapshot, StoreCorrupt), Exit.CONFIG),
    ((Unreachable,), Exit.UNREACHABLE),
)


def own_code(error: BaseException) -> Exit | None:
    """Return the exit code of an error of the coordinator; None: it is no error of its own."""
    return next((code for types, code in _CODES if isinstance(error, types)), None)
