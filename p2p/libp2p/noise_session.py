"""Noise as the only security protocol: upstream's handshake, our own transport phase (p2p/libp2p/noise.py).

1. Upstream spends a task switch and a socket write per message of 64 KiB. Here all received messages are decrypted
   together, and all outgoing ones are encrypted together and written once. The wire is the same.
2. Noise counts messages: one that was encrypted and not sent, because its task was cancelled, makes every later one
   fail authentication. Upstream cancels tasks in many places (timeouts, resets). So every write is shielded from
   cancellation in this module.
3. A shielded write is bounded by time: one that has not left after `STUCK_WRITE_SECONDS` seconds closes the socket.
"""

import trio

from echo2._libp2p.abc import IRawConnection, ISecureConn
from echo2._libp2p.crypto.keys import KeyPair
from echo2._libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from echo2._libp2p.custom_types import TProtocol, TSecurityOptions
from echo2._libp2p.io.abc import EncryptedMsgReadWriter
from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.peer.id import ID
from echo2._libp2p.security.noise.io import NoiseTransportReadWriter
from echo2._libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from echo2._libp2p.security.noise.transport import Transport as Noise
from echo2._libp2p.security.secure_session import SecureSession
from echo2.p2p.errors import Malformed
from echo2.p2p.guard import log
from echo2.p2p.libp2p.mux import Bytes
from echo2.p2p.libp2p.noise import Decryptor, Encryptor
from echo2.p2p.libp2p.noise_socket import RawSocket

STUCK_WRITE_SECONDS = 30.0


def security(key_pair: KeyPair) -> TSecurityOptions:
    """Return the security protocols to offer and to accept: Noise alone."""
    return {TProtocol(NOISE): BatchedNoise(key_pair, noise_privkey=create_noise_key_pair().private_key)}


class BatchedNoise(Noise):
    """Upstream's Noise, whose sessions have a `BatchedTransport`."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return _with_batches(await super().secure_inbound(conn), conn)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return _with_batches(await super().secure_outbound(conn, peer_id), conn)


def _with_batches(session: ISecureConn, conn: IRawConnection) -> ISecureConn:
    """Return a session with the keys that upstream's handshake established on `conn`, over a `BatchedTransport`."""
    assert isinstance(session, SecureSession)
    assert isinstance(session.conn, NoiseTransportReadWriter)
    noise = session.conn.noise_state.noise_protocol
    assert noise is not None
    sending, receiving = noise.cipher_state_encrypt, noise.cipher_state_decrypt
    encryptor, decryptor = Encryptor(sending.k, sending.n), Decryptor(receiving.k, receiving.n)
    return SecureSession(
        local_peer=session.local_peer,
        local_private_key=session.local_private_key,
        remote_peer=session.remote_peer,
        remote_permanent_pubkey=session.remote_permanent_pubkey,
        is_initiator=session.is_initiator,
        conn=BatchedTransport(conn, encryptor, decryptor, session.remote_peer),
    )


class BatchedTransport(EncryptedMsgReadWriter):
    """The transport phase of a connection: upstream's interface for muxer negotiation and stock yamux, `pieces` and
    `send` for our own muxer."""

    def __init__(self, conn: IRawConnection, encryptor: Encryptor, decryptor: Decryptor, peer: ID) -> None:
        super().__init__(conn)
        self.raw = RawSocket(conn)
        self._encryptor, self._decryptor, self._peer = encryptor, decryptor, peer
        self._writing = trio.Lock()

    async def pieces(self) -> list[bytes]:
        """Return the received plaintext, at least one byte; empty when the other side has closed. Raises
        `ConnectionClosedError`, also for bytes that fail authentication."""
        plain = list[bytes]()
        while not plain and (data := await self.raw.receive()):
            try:
                plain = self._decryptor.decrypt(data)
            except Malformed as fault:
                log.warning("connection closed: %s: %s", self._peer, fault)
                await self.close()
                raise ConnectionClosedError(str(fault)) from None
        return plain

    async def send(self, *pieces: Bytes) -> None:
        """Send all pieces, also if the caller is cancelled meanwhile (rule 2). Raises `ConnectionClosedError`."""
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            sealed = self._encryptor.encrypt(*pieces)
            if left := sealed[self.raw.send_now(sealed) :]:
                await self._send(left)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._writing.release()

    async def _send(self, sealed: memoryview) -> None:
        with trio.move_on_after(STUCK_WRITE_SECONDS) as scope:
            scope.shield = True
            await self.raw.send(sealed)
        if scope.cancelled_caught:
            await self.close()
            raise ConnectionClosedError(f"a write did not leave for {STUCK_WRITE_SECONDS:g} s")

    async def read_msg(self) -> bytes:
        return b"".join(await self.pieces())

    async def write_msg(self, msg: bytes) -> None:
        await self.send(msg)

    async def close(self) -> None:
        await self.raw.close()

    def encrypt(self, data: bytes) -> bytes:
        return bytes(self._encryptor.encrypt(data))

    def decrypt(self, data: bytes) -> bytes:
        return b"".join(self._decryptor.decrypt(data))
