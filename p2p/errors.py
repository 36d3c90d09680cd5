"""Errors of the network plane, named for the side at fault.

P2PError
├── PeerFault          the other side sent something that no honest peer sends: charge it, drop it
│   ├── Malformed      bytes that do not decode, or exceed a bound
│   │   └── TooLong    a frame longer than its reader accepts
│   ├── BadSignature   a document that lacks the signatures its role requires
│   └── BadChunk       a chunk whose proof does not lead to the signed root
├── Unreachable        neither side's fault: no route, reset, timeout; retry
│   └── Declined       the other side is connected, but does not answer this method
│       └── Busy       the other side is overloaded; retry soon
├── Exhausted          neither side's fault: this process has no free file descriptor; retry
├── Stale              an authentic document older than the one already accepted (rollback, replay, expiry)
└── LocalNetworkFault  this machine's fault (a runtime.errors.LocalFault): key file, port, permission
"""

from echo2.runtime.errors import LocalFault


class P2PError(Exception):
    """Root of every error that `p2p` raises."""


class PeerFault(P2PError):
    """The other side broke the protocol."""


class Malformed(PeerFault):
    """Bytes that do not decode as their type, or exceed a stated bound."""


class TooLong(Malformed):
    """A frame longer than its reader accepts, refused before it was read."""


class BadSignature(PeerFault):
    """A document without the signatures that its role requires."""


class BadChunk(PeerFault):
    """A chunk that does not hash to the signed root."""


class Unreachable(P2PError):
    """No answer: no route, a reset stream, a timeout."""


class Declined(Unreachable):
    """The other side is connected, but does not answer this method."""


class Busy(Declined):
    """The other side is overloaded. A handler that raises `Busy` has the requester told to retry soon."""


class Exhausted(P2PError):
    """This process, or the machine, has no free file descriptor for now."""


class Stale(P2PError):
    """An authentic document that is older than one already accepted, or expired."""


class LocalNetworkFault(P2PError, LocalFault):
    """A fault of this machine, which the operator must correct before the machine can join the network."""
