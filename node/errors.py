"""Errors that end a node's command: each is one sentence that names the fix, with an exit code for service managers.

NodeError
├── BadConfig        a setting, key file, invite or stored file must be corrected
├── RefusedByRun     the run refuses work of this node
├── TrustFailure     the run's keys did not sign its documents, or its Root has expired
├── NoUsableDevice   no device of this machine can run the model
├── NoDaemonAnswers  no node runs here, or it does not answer
└── TryLater         the disk is full, no peer answers, or no rate was kept
    └── AlreadyRuns  a node runs here already
"""

from echo2.runtime.exit_codes import Exit


class NodeError(Exception):
    """Base of the errors that end a command; the message is one sentence for people."""

    exit = Exit.INTERNAL


def own_code(error: BaseException) -> Exit | None:
    """Return the exit code of an error of this package; None for any other error."""
    return error.exit if isinstance(error, NodeError) else None


class BadConfig(NodeError):
    exit = Exit.CONFIG


class RefusedByRun(NodeError):
    exit = Exit.REFUSED


class TrustFailure(NodeError):
    exit = Exit.TRUST


class NoUsableDevice(NodeError):
    exit = Exit.NO_DEVICE


class TryLater(NodeError):
    exit = Exit.TEMPORARY


class NoDaemonAnswers(NodeError):
    exit = Exit.UNREACHABLE


class AlreadyRuns(TryLater):
    """A daemon holds the lock of this home."""
