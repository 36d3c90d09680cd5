"""Map the coordinator's errors to exit codes of `echo2-coord`. runtime/cli_errors.py maps the errors of the machine.

The classes are found by their names: a command that ends before it has loaded their modules reports its error all the
same, also where one of those modules cannot be imported.
"""

from collections.abc import Mapping
from typing import Final

from echo2.runtime.exit_codes import Exit

CODE_OF_CLASS: Final[Mapping[str, Exit]] = {
    "echo2.protocol.root_chain.Untrusted": Exit.TRUST,
    "echo2.p2p.errors.BadSignature": Exit.TRUST,
    "echo2.p2p.errors.Stale": Exit.TRUST,
    "echo2.ledger.ledger_entries.Tampered": Exit.TRUST,
    "echo2.coordinator.database.run_folder.FolderInUse": Exit.TEMPORARY,
    "echo2.weights.errors.StoreBusy": Exit.TEMPORARY,
    "echo2.coordinator.database.database.InUse": Exit.TEMPORARY,
    "echo2.weights.errors.BadSnapshot": Exit.CONFIG,
    "echo2.weights.errors.StoreCorrupt": Exit.CONFIG,
    "echo2.p2p.errors.Unreachable": Exit.UNREACHABLE,
    "echo2.weights.hub_fetch.HubUnreachable": Exit.UNREACHABLE,
}
"""Full name of a class -> exit code of its errors, and of those of its subclasses."""
_CHILD_ERROR: Final = "echo2.runtime.child.ChildError"
_OF_CHILDREN: Final = {
    "CheckpointError": Exit.CONFIG, "NoDevice": Exit.CONFIG, "TooLittleMemory": Exit.CONFIG, "NoMemory": Exit.CONFIG,
    "DeviceLost": Exit.TEMPORARY,
}  # fmt: skip
"""Errors that the processes of learner and scorer report by the name of their class."""


def own_code(error: BaseException) -> Exit | None:
    """Return the exit code of a coordinator error; None for any other error."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if _CHILD_ERROR in names:
        return _OF_CHILDREN.get(getattr(error, "kind", ""))
    return next((CODE_OF_CLASS[name] for name in names if name in CODE_OF_CLASS), None)
