"""The other end's address of a socket. Upstream knows it for IPv4 alone: over IPv6 a socket's address has four parts,
and what has not two it takes for none. Then limits by address, the observed address that peers are told, and whoever
asks for the address of a connection miss every IPv6 peer. So that one method is replaced.
"""

from libp2p.io.trio import TrioTCPStream


def get_remote_address(stream: TrioTCPStream) -> tuple[str, int] | None:
    """Host without a zone, and port; None once the socket is closed and it was never asked."""
    if stream._cached_remote_address is None:
        try:
            host, port = stream.stream.socket.getpeername()[:2]
        except (OSError, ValueError, AttributeError):
            return None
        stream._cached_remote_address = str(host).partition("%")[0], int(port)
    return stream._cached_remote_address


def install() -> None:
    """For every connection of this process."""
    TrioTCPStream.get_remote_address = get_remote_address  # type: ignore[method-assign, assignment]
