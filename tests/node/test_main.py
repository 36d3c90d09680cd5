"""The start of a daemon: its log, its invite, its network."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from echo2.node import main
from echo2.node.config import NodeConfig
from echo2.node.errors import BadConfig, NoUsableDevice
from echo2.node.main import invite_of, network_of, set_up_log
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.runtime.exit_codes import Exit
from tests.support.logging_state import logging_as_before


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    with logging_as_before():
        logging.getLogger().handlers.clear()
        yield


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 1), ("warning", 1), ("error", 0)])
def test_log_lines_of_the_network_have_the_form_of_the_nodes(
    level: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    set_up_log(NodeConfig(log=level, json_logs=True))
    logging.getLogger("p2p").debug("a stream was reset")
    logging.getLogger("p2p").info("%s is reached directly now", "a peer")
    logging.getLogger("p2p").warning("%s is dropped", "a peer")
    logging.getLogger("asyncio").debug("nobody's concern")
    said = [json.loads(text_line) for text_line in stream.getvalue().splitlines()]
    assert len(said) == shown
    if said:
        assert (said[-1]["level"], said[-1]["event"]) == ("warning", "a peer is dropped")
        assert "timestamp" in said[-1]


INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"])


def test_the_invite_given_is_stored_for_the_next_start(tmp_path: Path) -> None:
    assert invite_of(NodeConfig(home=tmp_path, invite=INVITE.to_text())) == INVITE
    assert invite_of(NodeConfig(home=tmp_path)) == INVITE


def test_the_run_joined_last_is_taken_without_a_search_when_its_fingerprint_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str | None] = []
    other = msgspec.structs.replace(INVITE, root_hash=b"o" * 32)

    def confirmed(accepted: str | None) -> Invite:
        searches.append(accepted)
        return other

    monkeypatch.setattr("echo2.node.links.local_discovery.confirm_invite", confirmed)
    invite_of(NodeConfig(home=tmp_path, invite=INVITE.to_text()))
    same = NodeConfig(home=tmp_path, accept_fingerprint=INVITE.fingerprint.lower())
    assert (invite_of(same), searches) == (INVITE, [])
    assert invite_of(NodeConfig(home=tmp_path, accept_fingerprint=other.fingerprint)) == other
    assert searches == [other.fingerprint]
    assert invite_of(NodeConfig(home=tmp_path)) == other


def test_a_node_without_a_route_that_the_invite_offers_does_not_start(tmp_path: Path) -> None:
    config = NodeConfig(home=tmp_path, via=("https",))
    with pytest.raises(BadConfig, match="offers no HTTPS"):
        network_of(config, INVITE, generate_key())


def test_a_node_of_https_alone_has_its_own_key_as_peer_id(tmp_path: Path) -> None:
    key, config = generate_key(), NodeConfig(home=tmp_path, via=("https",))
    network = network_of(config, msgspec.structs.replace(INVITE, https_key=b"k" * 32), key)
    assert network.links.peer_id == peer_id(public_bytes(key))


class Daemons:
    """Stands in for the daemons that a start makes one after the other, and their choice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lives: Any) -> None:
        self._lives = list(lives)
        self.given: list[Any] = []
        self.forgotten = False
        self.others: list[Any] = []
        self.reasons: list[str] = []
        self.choice: Any = SimpleNamespace(cards=["card 0", "card 1"], forget=self._forget, next_after=self._next)
        monkeypatch.setattr(main, "_daemon_of", self._daemon_of)

    def _forget(self) -> None:
        self.forgotten = True

    def _next(self, reason: str) -> Any:
        self.reasons.append(reason)
        return self.others.pop() if self.others else None

    async def _daemon_of(self, config: object, invite: object, key: object, cards: Any, *, once: bool) -> Any:
        self.given.append(cards)
        life = self._lives.pop(0)

        async def run() -> Exit:
            if isinstance(life, Exception):
                raise life
            return Exit.OK

        return SimpleNamespace(run=run, begins_again=life == "again", several=bool(cards)), self.choice


async def test_a_node_that_has_chosen_one_of_equal_cards_begins_again_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = Daemons(monkeypatch, "again", "ends")
    assert await main._run(NodeConfig(home=tmp_path), INVITE, None, once=False) == Exit.OK
    assert daemons.given == [None, ["card 0", "card 1"]]
    assert not daemons.forgotten


async def test_a_choice_of_several_cards_that_cannot_be_used_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = Daemons(monkeypatch, "again", NoUsableDevice("gone"))
    with pytest.raises(NoUsableDevice):
        await main._run(NodeConfig(home=tmp_path), INVITE, None, once=False)
    assert daemons.forgotten


async def test_after_an_engine_that_crashes_in_a_loop_the_next_one_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = Daemons(monkeypatch, NoUsableDevice("it died 7 times"), "ends")
    daemons.others = [SimpleNamespace(text="llamacpp/float32/cpu (a CPU)")]
    with capture_logs() as logs:
        assert await main._run(NodeConfig(home=tmp_path), INVITE, None, once=False) == Exit.OK
    assert daemons.reasons == ["it died 7 times"]
    assert [(one["reason"], one["next"]) for one in logs] == [("it died 7 times", "llamacpp/float32/cpu (a CPU)")]


async def test_where_no_other_engine_was_timed_the_crash_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = Daemons(monkeypatch, NoUsableDevice("it died 7 times"))
    with pytest.raises(NoUsableDevice):
        await main._run(NodeConfig(home=tmp_path), INVITE, None, once=False)
    assert (daemons.reasons, daemons.forgotten) == (["it died 7 times"], False)
