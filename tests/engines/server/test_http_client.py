"""HTTP to a server that may do anything."""

import concurrent.futures
from collections.abc import Iterator

import pytest

from echo2.engines.server.http_client import HttpClient, ServerFault, ServerGone
from tests.support.table_server import TableServer

GENERATE = "/inference/v1/generate"
BODY = {"token_ids": [3], "sampling_params": {"max_tokens": 2}}


@pytest.fixture
def server() -> Iterator[TableServer]:
    with TableServer(16).running() as server:
        yield server


@pytest.fixture
def client(server: TableServer) -> Iterator[HttpClient]:
    client = HttpClient(server.address + "/", patience=20)
    yield client
    client.close()


def test_many_requests_wait_at_once(client: HttpClient) -> None:
    waiting = [client.begin(GENERATE, BODY) for _ in range(64)]
    concurrent.futures.wait(waiting)
    assert all(len(one.result()["choices"]) == 1 for one in waiting)


def test_an_answer_that_is_an_error_is_quoted(client: HttpClient, server: TableServer) -> None:
    server.fault = "errors"
    with pytest.raises(ServerFault, match=r"answered /inference/v1/generate with 500: .*an illegal memory access"):
        client.post(GENERATE, BODY)


def test_an_answer_that_is_no_json_is_quoted(client: HttpClient, server: TableServer) -> None:
    server.fault = "no JSON"
    with pytest.raises(ServerFault, match="is no JSON: <html>502 Bad Gateway</html>"):
        client.post(GENERATE, BODY)


def test_a_redirection_is_not_followed(client: HttpClient, server: TableServer) -> None:
    """Weights and key would go to an address that the owner did not name."""
    with TableServer(16).running() as other:
        server.fault, server.elsewhere = "a redirection", other.address + GENERATE
        with pytest.raises(ServerFault, match=r"answered /inference/v1/generate with 307"):
            client.post(GENERATE, BODY)
        assert other.asked == 0


def test_a_server_that_dies_in_the_middle_of_a_request_is_gone(client: HttpClient, server: TableServer) -> None:
    server.fault = "dies"
    with pytest.raises(ServerGone, match=f"the server {server.address} cannot be reached: "):
        client.post(GENERATE, BODY)


def test_a_server_that_does_not_answer_in_time_is_gone(server: TableServer) -> None:
    server.fault = "hangs"
    client = HttpClient(server.address, patience=0.2)
    with pytest.raises(ServerGone, match=r"did not answer within 0\.2 s"):
        client.post(GENERATE, BODY)
    client.close()


def test_where_nothing_listens_there_is_no_server() -> None:
    client = HttpClient("http://127.0.0.1:9")
    with pytest.raises(ServerGone, match="cannot be reached"):
        client.get("/version")
    client.close()


def test_a_request_that_is_cancelled_leaves_the_others(client: HttpClient, server: TableServer) -> None:
    server.fault = "hangs"
    waiting = client.begin(GENERATE, BODY)
    while not server.asked:
        pass
    server.fault = ""
    waiting.cancel()
    assert waiting.cancelled()
    assert client.post(GENERATE, BODY)["choices"]


def test_closing_ends_what_waits(server: TableServer) -> None:
    server.fault = "hangs"
    client = HttpClient(server.address)
    waiting = client.begin(GENERATE, BODY)
    while not server.asked:
        pass
    client.close()
    assert not client._thread.is_alive()
    assert waiting.done()


@pytest.mark.slow
def test_an_answer_that_is_longer_than_its_request_allows_is_not_parsed(
    client: HttpClient, server: TableServer
) -> None:
    """60 MB of empty lists took a minute and 1.8 GB to parse, for each of the requests under way."""
    server.fault = "too much"
    with pytest.raises(ServerFault, match=r"the server's answer is longer than 1,048,576 bytes"):
        client.post(GENERATE, BODY)
    assert len(client.post(GENERATE, BODY, most=4 << 20)["choices"]) == (1 << 20) + 1


def test_a_quoted_answer_cannot_rewrite_the_owners_terminal(client: HttpClient, server: TableServer) -> None:
    server.fault = "escapes"
    with pytest.raises(ServerFault, match=r"is no JSON: \?\[2J\?\[31mall is well"):
        client.post(GENERATE, BODY)
