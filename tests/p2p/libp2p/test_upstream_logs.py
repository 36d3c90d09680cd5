"""Log records of py-libp2p become debug records of this package."""

import logging
import sys

import pytest

from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.transport import LibP2PTransport


def ours(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "p2p"]


@pytest.fixture
def upstream(caplog: pytest.LogCaptureFixture) -> logging.Logger:
    for _ in range(2):
        LibP2PTransport(generate_key(), ["/ip4/127.0.0.1/tcp/0"])
    caplog.set_level(logging.DEBUG, "p2p")
    return logging.getLogger("echo2._libp2p.network.swarm")


def test_upstreams_warnings_become_debug_records_once(
    upstream: logging.Logger, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    upstream.warning("no connection to %s, back off until %d", "a peer", 7)
    assert ours(caplog) == [("DEBUG", "echo2._libp2p.network.swarm: no connection to a peer, back off until 7")]
    assert capfd.readouterr().err == ""


def test_an_error_record_of_upstream_keeps_its_traceback(
    upstream: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise KeyError("a bug")
    except KeyError:
        upstream.error("failed", exc_info=sys.exc_info())
    ((level, said),) = ours(caplog)
    assert level == "DEBUG"
    assert "Traceback" in said


def test_a_malformed_log_record_of_upstream_raises_no_error(
    upstream: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    upstream.warning("%d peers", "no number")
    assert ours(caplog) == []
