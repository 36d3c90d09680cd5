"""Noise as the only security protocol: upstream's handshake, our own transport phase (p2p/libp2p/noise.py).

1. Upstream spends a task switch and a socket write per message of 64 KiB. Here all received messages are decrypted
   together, and all outgoing ones are encrypted together and written once. The wire is the same.
2. Noise counts messages: one that was encrypted and not sent, because its task was cancelled, makes every later one
   fail authentication. Upstream cancels tasks in many places (timeouts, resets). So every write is shielded from
   cancellation in this module.
3. A shielded write is bounded by time: one that has not left after `STUCK_WRITE_SECONDS` seconds closes the socket.
"""

import logging
from collections import deque

import trio

from echo2._libp2p.abc import IRawConnection, ISecureConn
from echo2._libp2p.connection_types import ConnectionType
from echo2._libp2p.crypto.keys import KeyPair
from echo2._libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from echo2._libp2p.custom_types import TProtocol, TSecurityOptions
from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.peer.id import ID
from echo2._libp2p.security.base_session import BaseSession
from echo2._libp2p.security.noise.io import NoiseTransportReadWriter
from echo2._libp2p.security.noise.patterns import PatternXX
from echo2._libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from echo2._libp2p.security.noise.transport import Transport as Noise
from echo2._libp2p.security.secure_session import SecureSession
from echo2.p2p.errors import Malformed
from echo2.p2p.libp2p.mux import Bytes
from echo2.p2p.libp2p.noise import Decryptor, Encryptor
from echo2.p2p.libp2p.noise_socket import RawSocket
from echo2.p2p.limits.least_rate import Flow

log = logging.getLogger("p2p")

STUCK_WRITE_SECONDS = 30.0
"""Seconds for one write to leave before its connection is closed."""


def security(key_pair: KeyPair) -> TSecurityOptions:
    """Return the security protocols to offer and to accept: Noise alone."""
    return {TProtocol(NOISE): BatchedNoise(key_pair, noise_privkey=create_noise_key_pair().private_key)}


class BatchedNoise(Noise):
    """Upstream's Noise, whose handshake results in a `NoiseSession`."""

    def get_pattern(self) -> "PatternXX":
        return _PatternXX(self.local_peer, self.libp2p_privkey, self.noise_privkey, self.early_data)


class _PatternXX(PatternXX):
    async def handshake_inbound(self, conn: IRawConnection) -> ISecureConn:
        return NoiseSession.after(await super().handshake_inbound(conn), conn)

    async def handshake_outbound(self, conn: IRawConnection, remote_peer: ID | None) -> ISecureConn:
        return NoiseSession.after(await super().handshake_outbound(conn, remote_peer), conn)


class NoiseSession(BaseSession):
    """A secured connection: upstream's interface for muxer negotiation and stock yamux, `pieces` and `send` for our own
    muxer."""

    @classmethod
    def after(cls, session: ISecureConn, conn: IRawConnection) -> "NoiseSession":
        """Take over the keys of the session that upstream's handshake established on `conn`."""
        assert isinstance(session, SecureSession)
        assert isinstance(session.conn, NoiseTransportReadWriter)
        noise = session.conn.noise_state.noise_protocol
        assert noise is not None
        sending, receiving = noise.cipher_state_encrypt, noise.cipher_state_decrypt
        taken = cls(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
        )
        taken.start(conn, Encryptor(sending.k, sending.n), Decryptor(receiving.k, receiving.n))
        return taken

    def start(self, conn: IRawConnection, encryptor: Encryptor, decryptor: Decryptor) -> None:
        """Set the connection and its keys: once, before any other method is called."""
        self.raw_conn = conn
        self._raw = RawSocket(conn)
        self._encryptor = encryptor
        self._decryptor = decryptor
        self._arrived: deque[bytes | memoryview] = deque()
        self._writing = trio.Lock()

    @property
    def received_flow(self) -> Flow:
        """Bytes received so far, encrypted ones of unfinished messages included."""
        return self._raw.received

    @property
    def sent_flow(self) -> Flow:
        """Bytes sent so far."""
        return self._raw.sent

    async def pieces(self) -> list[bytes | memoryview]:
        """Return the received plaintext, at least one byte; empty when the other side has closed. Raises
        `ConnectionClosedError`, also for bytes that fail authentication."""
        while not self._arrived:
            data = await self._raw.receive()
            if not data:
                return []
            try:
                self._arrived += self._decryptor.decrypt(data)
            except Malformed as fault:
                log.warning("connection closed: %s: %s", self.remote_peer, fault)
                await self.close()
                raise ConnectionClosedError(str(fault)) from None
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    async def read(self, n: int | None = None) -> bytes:
        """Return `n` bytes, fewer only at the end; without `n` the received bytes, at least one. Raises
        `ConnectionClosedError`."""
        data = bytearray()
        while n is None or len(data) < n:
            pieces = await self.pieces()
            if not pieces:
                break
            data += b"".join(pieces)
            if n is None:
                break
        if n is not None and len(data) > n:
            self._arrived.appendleft(memoryview(bytes(data[n:])))
        if not data and n != 0:
            raise ConnectionClosedError("the other side closed the connection")
        return bytes(data[:n])

    async def write(self, data: bytes) -> None:
        await self.send(data)

    async def send(self, *pieces: Bytes) -> None:
        """Send all pieces, also if the caller is cancelled meanwhile (rule 2). Raises `ConnectionClosedError`."""
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            sealed = self._encryptor.encrypt(*pieces)
            if left := sealed[self._raw.send_now(sealed) :]:
                await self._send(left)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._writing.release()

    async def _send(self, sealed: memoryview) -> None:
        with trio.move_on_after(STUCK_WRITE_SECONDS) as scope:
            scope.shield = True
            await self._raw.send(sealed)
        if scope.cancelled_caught:
            await self.close()
            raise ConnectionClosedError(f"a write did not leave for {STUCK_WRITE_SECONDS:g} s")

    async def close(self) -> None:
        await self.raw_conn.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.raw_conn.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self.raw_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self.raw_conn.get_connection_type()
