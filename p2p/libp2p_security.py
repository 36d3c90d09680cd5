"""Noise, and nothing else; with writes that cannot be cut short.

Noise counts messages: one that was encrypted and not sent, because its task was cancelled, makes every later message
fail its authentication, and the connection dies. Upstream cancels tasks in many places (timeouts, resets), so the
write itself is shielded here, at the one place where every byte passes. What bounds it instead is time: a write that
has not left after `STUCK` seconds closes the socket.
"""

import trio
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol, TSecurityOptions
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise

STUCK = 30.0
"""Seconds for one write to leave, before its connection is closed."""


def security(key_pair: KeyPair) -> TSecurityOptions:
    """What is offered to a peer, and accepted from one."""
    return {TProtocol(NOISE): SteadyNoise(key_pair, noise_privkey=create_noise_key_pair().private_key)}


class SteadyNoise(Noise):
    """Upstream's Noise, handshake and wire unchanged."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return _steady(await super().secure_inbound(conn))

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return _steady(await super().secure_outbound(conn, peer_id))


def _steady(connection: ISecureConn) -> ISecureConn:
    write = connection.write

    async def steady_write(data: bytes) -> None:
        with trio.move_on_after(STUCK) as scope:
            scope.shield = True
            await write(data)
        if scope.cancelled_caught:
            await connection.close()
            raise ConnectionClosedError(f"a write did not leave for {STUCK:g} s")

    connection.write = steady_write  # type: ignore[method-assign]
    return connection
