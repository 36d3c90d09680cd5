"""Errors of the network plane, named for the side at fault."""

from echo2.runtime.errors import LocalFault


class P2PError(Exception):
    """Root of every error that `p2p` raises."""


class PeerFault(P2PError):
    """The other side sent what no honest peer sends: charge it, drop it."""


class Malformed(PeerFault):
    """Bytes that do not decode as their type, or exceed a stated bound."""


class TooLong(Malformed):
    """A frame longer than its reader accepts, refused before it was read."""


class BadSignature(PeerFault):
    """A document without the signatures that its role requires."""


class BadChunk(PeerFault):
    """A chunk whose proof does not lead to the signed root."""


class Unreachable(P2PError):
    """No answer, by neither side's fault: no route, a reset stream, a timeout. Retry."""


class Declined(Unreachable):
    """The other side is connected, but does not answer this method."""


class Busy(Declined):
    """The other side is overloaded: retry soon. A handler that raises `Busy` has the requester told so."""


class Exhausted(P2PError):
    """This process, or the machine, has no free file descriptor for now: retry."""


class Stale(P2PError):
    """An authentic document that is older than one already accepted, or expired."""


class LocalNetworkFault(P2PError, LocalFault):
    """A fault of this machine (key file, port, permission), which its operator must correct first."""
