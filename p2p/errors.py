"""Errors of the network plane, named for the side at fault.

P2PError
├── PeerFault          the other side sent what no honest peer sends: charge it, drop it
│   ├── Malformed      bytes that do not decode, or exceed a bound
│   │   └── TooLong    a frame longer than its reader takes
│   ├── BadSignature   a document not signed by whom it must be
│   ├── BadChunk       a chunk whose proof does not lead to the signed root
│   └── WrongIdentity  the other end of a connection shows another key than the one that was pinned
├── Unreachable        nobody's fault: no route, reset, timeout; worth another try
│   └── Declined       the other side is there, and does not answer this: it does not know the question
│       └── Busy       it has too much to do just now, and may be asked again soon
├── Exhausted          nobody's fault: this process has no descriptor left; worth another try
├── Stale              an authentic document older than what is held (rollback, replay, expiry)
└── LocalFault         this machine's fault (a runtime.errors.LocalFault): key file, port, permission
"""

from runtime import errors


class P2PError(Exception):
    """Root of every error that `p2p` raises."""


class PeerFault(P2PError):
    """The other side broke the protocol."""


class Malformed(PeerFault):
    """Bytes that do not decode as their type, or exceed a stated bound."""


class TooLong(Malformed):
    """A frame longer than its reader takes, refused before it was read."""


class BadSignature(PeerFault):
    """A document without the signatures its role requires."""


class BadChunk(PeerFault):
    """A chunk that does not hash to the signed root."""


class WrongIdentity(PeerFault):
    """Whoever answers holds another key than the one that was pinned."""


class Unreachable(P2PError):
    """No answer: no route, a reset stream, a timeout."""


class Declined(Unreachable):
    """The other side is there, and does not answer this."""


class Busy(Declined):
    """Too much is to be done just now. A handler that raises it has its asker told so."""


class Exhausted(P2PError):
    """This process, or the machine, has no descriptor left for now."""


class Stale(P2PError):
    """An authentic document that is older than one already held, or expired."""


class LocalFault(P2PError, errors.LocalFault):
    """Something on this machine must be put right before it can take part in the network."""
