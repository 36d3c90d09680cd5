"""Test the choice of the engine's server."""

import pytest

from echo2.engines.engine import EngineError
from echo2.engines.server.address import client_of, missing


def test_without_an_address_the_option_is_named() -> None:
    with pytest.raises(EngineError, match=r"^no server is named: write --server http://127"):
        client_of({})


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://there"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(EngineError, match="is no address of a server: write --server http://127"):
        client_of({"ECHO2_SERVER": address})


def test_a_token_is_sent_as_a_bearer() -> None:
    client = client_of({"ECHO2_SERVER": "https://there:8000/", "ECHO2_SERVER_KEY": "secret"})
    assert (client.address, client._headers) == ("https://there:8000", {"Authorization": "Bearer secret"})
    client.close()


def test_without_an_address_the_engine_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHO2_SERVER", raising=False)
    assert missing() == ["the setting server"]
    monkeypatch.setenv("ECHO2_SERVER", "http://there")
    assert missing() == []
