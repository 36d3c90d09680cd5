"""Direct access to the socket under a raw connection: data, ends, and connections without a socket."""

import pytest
import trio
import trio.testing

from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.io.trio import TrioTCPStream
from echo2._libp2p.network.connection.raw_connection import RawConnection
from echo2.p2p.libp2p.circuit import CircuitStream
from echo2.p2p.libp2p.noise_socket import RawSocket


def test_bytes_pass_the_socket_of_a_raw_connection_over_tcp_until_it_ends():
    async def main() -> None:
        listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
        near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        far = await listener.accept()
        one, other = (RawSocket(RawConnection(TrioTCPStream(end), True)) for end in (near, far))
        assert one._socket is near.socket
        assert one.send_now(memoryview(b"hello")) == 5
        assert await other.receive() == b"hello"
        data = memoryview(bytes(8 << 20))

        async def send() -> None:
            await one.send(data[one.send_now(data) :])
            await near.aclose()

        count = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while piece := await other.receive():
                count += len(piece)
        assert count == len(data)
        assert one.send_now(data) == len(data), "lost, since this side has closed it"
        assert await one.receive() == b""

        async def send_on() -> None:
            while True:  # the first writes to a peer that is gone may still pass
                await other.send(data)

        with pytest.raises(ConnectionClosedError):
            await send_on()
        await far.aclose()
        await listener.aclose()

    trio.run(main)


def test_a_waiting_receiver_and_sender_end_when_this_side_closes_the_socket():
    async def main() -> None:
        listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
        near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        far = await listener.accept()
        raw = RawSocket(RawConnection(TrioTCPStream(near), True))

        async def receive() -> None:
            assert await raw.receive() == b""

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            nursery.start_soon(raw.send, memoryview(bytes(64 << 20)))
            await trio.testing.wait_all_tasks_blocked()
            await near.aclose()
        await far.aclose()
        await listener.aclose()

    trio.run(main)


def test_a_connection_without_a_socket_uses_upstream_s_layers():
    assert RawSocket(RawConnection(CircuitStream.__new__(CircuitStream), True))._socket is None
