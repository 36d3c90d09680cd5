"""What ends a node's command: one sentence that names the fix, and the exit code that tells a service what to do.

NodeError
├── BadConfig                a setting, key file or invite must be put right
├── CoordinatorUnreachable   nobody answered at any known address
├── RefusedByRun             the run wants no work of this node
├── TrustFailure             documents that the run's keys did not make, or no longer vouch for
├── NoUsableDevice                 nothing here can run the model
└── TryLater                 another daemon runs here, or this machine is out of room
"""

from runtime.exit_codes import Exit


class NodeError(Exception):
    """Root of the errors that end a command; the message is one line for people."""

    exit = Exit.INTERNAL


def own_code(error: BaseException) -> Exit | None:
    """Return the exit code of an error of the node; None: it is no error of its own."""
    return error.exit if isinstance(error, NodeError) else None


class BadConfig(NodeError):
    exit = Exit.CONFIG


class CoordinatorUnreachable(NodeError):
    exit = Exit.UNREACHABLE


class RefusedByRun(NodeError):
    exit = Exit.REFUSED


class TrustFailure(NodeError):
    exit = Exit.TRUST


class NoUsableDevice(NodeError):
    exit = Exit.NO_DEVICE


class TryLater(NodeError):
    exit = Exit.TEMPORARY
