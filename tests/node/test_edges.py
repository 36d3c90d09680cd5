"""The node's edges: settings, lock, control socket, outbox, commands. Everything wrong is one line and an exit code."""

import asyncio
import contextlib
import io
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.config import NodeConfig, config_path, load_config
from node.control.owner_socket import CommandServer, ask_daemon, socket_path
from node.errors import BadConfig, TryLater
from node.home import locked
from node.main import set_up_log
from node.rollouts.outbox import Outbox
from node.run_state import NodeRunState
from node.trust.trusted_set import Mismatch
from p2p.discovery.invite import Invite
from p2p.envelope import document_hash, seal, verify_envelope
from p2p.errors import BadSignature
from p2p.identity import generate_key, public_bytes
from p2p.wire_types import encode
from protocol.leases import Receipt, Received
from protocol.requests import Refusal
from runtime.exit_codes import Exit
from runtime.settings import SettingsFault
from tests.support.paths import ROOT

RUN, LEASE, BODY, NODE = b"r" * 32, b"l" * 16, b"a submission", b"n" * 32


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('name = "file"\ngpu = "cuda:1"\nthreads = 3\n')
    environ = {"ECHO2_CONFIG": str(file), "ECHO2_NAME": "environment", "ECHO2_GPU": "cpu"}
    config, origins = load_config({"name": "flag", "gpu": None}, environ)
    assert (config.name, config.gpu, config.threads, config.outbox) == ("flag", "cpu", 3, 256)
    assert [origins[key] for key in ("name", "gpu", "threads", "outbox")] == [
        "command line",
        "ECHO2_GPU",
        str(file),
        "default",
    ]


def test_the_file_lies_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path({}) == tmp_path / "echo2" / "node.toml"


BAD_SETTINGS = {
    "an unknown key in the file": ("gpus = 1\n", {}, "did you mean gpu"),
    "an unknown variable": ("", {"ECHO2_INVIT": "x"}, "did you mean ECHO2_INVITE"),
    "no TOML": ("name = = 3\n", {}, "is not TOML"),
    "a number of the wrong kind": ('threads = "many"\n', {}, "threads"),
    "a device that is none": ("", {"ECHO2_GPU": "tpu"}, "gpu"),
    "a name too long": ("", {"ECHO2_NAME": "x" * 41}, "name"),
    "a name with a control character": ("", {"ECHO2_NAME": "a\x1b[31mb"}, "printed"),
    "a disk of nothing": ("disk = 0\n", {}, "disk"),
}


@pytest.mark.parametrize("sentence", BAD_SETTINGS)
def test_a_bad_setting_is_one_line_that_names_it(tmp_path: Path, sentence: str) -> None:
    text, environ, said = BAD_SETTINGS[sentence]
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(SettingsFault, match=said) as refused:
        load_config({}, {"ECHO2_CONFIG": str(file), **environ})
    assert "\n" not in str(refused.value)


def test_the_coordinators_variables_on_the_same_machine_are_not_the_nodes() -> None:
    load_config({}, {"ECHO2_COORD_HOME": "/srv/run", "ECHO2_KEY_PASSPHRASE": "x"})


def test_every_setting_says_what_it_is() -> None:
    for name, field in NodeConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


# --- lock and control ------------------------------------------------------------------------------------------------


def test_two_daemons_never_share_a_home(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TryLater, match=f"process {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


async def test_the_control_socket_is_the_owners_alone_and_bounded(tmp_path: Path) -> None:
    async def echo(asked: dict[str, object]) -> dict[str, object]:
        if asked.get("fail"):
            raise ValueError("seconds must be a number above 0")
        return {"heard": asked.get("word")}

    path = socket_path(tmp_path)
    server = asyncio.ensure_future(CommandServer(path, {"echo": echo}).run())
    while not path.exists() or stat.S_IMODE(path.stat().st_mode) != 0o600:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    ask = lambda **asked: asyncio.to_thread(lambda: ask_daemon(tmp_path, **asked))  # noqa: E731
    assert await ask(command="echo", word="hello") == {"heard": "hello"}
    for wrong, said in (({"command": "rm"}, "no such command"), ({"command": "echo", "fail": True}, "above 0")):
        with pytest.raises(TryLater, match=said):
            await ask(**wrong)
    for bad in (b"not json\n", b"[]\n", b"[" * 60_000 + b"\n"):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(bad)
        assert not json.loads(await reader.readline())["ok"]
        writer.close()
        await writer.wait_closed()
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"x" * (1 << 18))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await anyio.lowlevel.checkpoint()
    server.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server
    assert not path.exists()


def test_a_home_that_is_deep_gets_a_short_socket_of_its_own(tmp_path: Path) -> None:
    deep, other = tmp_path / ("x" * 90), tmp_path / ("y" * 90)
    assert len(os.fsencode(socket_path(deep))) <= 100
    assert socket_path(deep) != socket_path(other)
    assert socket_path(deep) == socket_path(deep)


def test_where_temporary_files_lie_deep_the_socket_of_a_deep_home_lies_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("z" * 90)))
    path = socket_path(tmp_path / ("x" * 90))
    assert len(os.fsencode(path)) <= 100
    assert path.parent.parent == Path("/tmp")


def test_a_command_without_a_daemon_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(TryLater, match="echo2-node run"):
        ask_daemon(tmp_path, command="status")


# --- outbox ----------------------------------------------------------------------------------------------------------


def opener(ledger: Ed25519PrivateKey):  # type: ignore[no-untyped-def]
    return lambda sealed, kind: verify_envelope(sealed, kind, RUN, {public_bytes(ledger)})


def receipt(key: Ed25519PrivateKey, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "run": RUN, "node": NODE, "lease": LEASE, "era": 1, "version": 1, "submission_hash": document_hash(BODY),
        "verdict": "accepted", "code": "ok", "reason": "", "trainable": True, "weight": 1, "entry": 0,
        "entry_hash": bytes(32), "at": 5,
    }  # fmt: skip
    return seal("receipt", RUN, encode(Receipt(**{**fields, **changes})), key)  # type: ignore[arg-type]


def received(key: Ed25519PrivateKey, **changes: object) -> bytes:
    fields: dict[str, object] = {"lease": LEASE, "submission_hash": document_hash(BODY), "at": 5}
    return seal("received", RUN, encode(Received(**{**fields, **changes})), key)  # type: ignore[arg-type]


def test_a_submission_lives_from_queued_to_confirmed_over_every_restart(tmp_path: Path) -> None:
    ledger, path = generate_key(), tmp_path / "outbox.sqlite"

    def opened() -> Outbox:
        return Outbox(path, node=NODE, limit=2)

    with closing(opened()) as outbox:
        outbox.put(LEASE, BODY, 1)
        outbox.put(LEASE, b"other bytes", 2)
    with closing(opened()) as outbox:
        assert outbox.queued() == (LEASE, BODY)
        outbox.take_received(LEASE, received(ledger), opener(ledger))
    with closing(opened()) as outbox:
        assert (outbox.queued(), outbox.undecided(9), outbox.waiting()) == (None, [LEASE], 1)
        outbox.requeue([LEASE])
        assert outbox.queued() == (LEASE, BODY)
        outbox.take_received(LEASE, received(ledger), opener(ledger))
        outbox.take_receipt(LEASE, receipt(ledger), opener(ledger), 9)
    with closing(opened()) as outbox:
        assert (outbox.waiting(), outbox.unconfirmed(9), outbox.counts()) == (0, [LEASE], {"accepted": 1})
        outbox.mark_confirmed([LEASE])
        outbox.put(LEASE, BODY, 10)
    with closing(opened()) as outbox:
        assert (outbox.queued(), outbox.unconfirmed(9)) == (None, [])
        (row,) = outbox.rows()
        assert (row.state, row.decided, row.receipt) == ("accepted", 9, receipt(ledger))


LEDGER = generate_key()
FALSE_RECEIPTS = {
    "signed by a stranger": (lambda: receipt(generate_key()), BadSignature),
    "for another node": (lambda: receipt(LEDGER, node=b"x" * 32), Mismatch),
    "for another lease": (lambda: receipt(LEDGER, lease=b"x" * 16), Mismatch),
    "for other bytes": (lambda: receipt(LEDGER, submission_hash=b"x" * 32), Mismatch),
    "a Received in its place": (lambda: received(LEDGER), BadSignature),
}


@pytest.mark.parametrize("lie", FALSE_RECEIPTS)
def test_a_false_receipt_changes_nothing(tmp_path: Path, lie: str) -> None:
    make, error = FALSE_RECEIPTS[lie]
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=2)) as outbox:
        outbox.put(LEASE, BODY, 1)
        with pytest.raises(error):
            outbox.take_receipt(LEASE, make(), opener(LEDGER), 2)
        assert (outbox.queued(), outbox.counts()) == ((LEASE, BODY), {"queued": 1})


def test_an_acknowledgement_of_other_bytes_changes_nothing(tmp_path: Path) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=2)) as outbox:
        outbox.put(LEASE, BODY, 1)
        with pytest.raises(Mismatch):
            outbox.take_received(LEASE, received(LEDGER, submission_hash=b"x" * 32), opener(LEDGER))
        assert outbox.queued() == (LEASE, BODY)


def test_a_final_refusal_is_final_and_keeps_its_reason(tmp_path: Path) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=1)) as outbox:
        outbox.put(LEASE, BODY, 1)
        assert outbox.full
        outbox.take_refusal(LEASE, Refusal(code="unknown-lease", sentence="There is no such lease."), 2)
        assert not outbox.full
        (row,) = outbox.rows()
        assert (row.state, row.code, row.reason) == ("refused", "unknown-lease", "There is no such lease.")


def test_a_damaged_outbox_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "outbox.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(BadConfig, match="move it away"):
        Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=1)


# --- switch and log --------------------------------------------------------------------------------------------------


async def test_finishing_ends_every_wait() -> None:
    switch = NodeRunState(lambda: 0)
    switch.pause(None)
    waiting = asyncio.ensure_future(switch.unless_finishing(switch.until_resumed()))
    await asyncio.sleep(0)
    assert not waiting.done()
    switch.finish("the test")
    await waiting


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    root, network = logging.getLogger(), logging.getLogger("p2p")
    handlers, levels = root.handlers[:], (root.level, network.level)
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    network.setLevel(levels[1])
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 1), ("warning", 1), ("error", 0)])
def test_what_the_network_plane_says_has_the_nodes_form(
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


# --- commands --------------------------------------------------------------------------------------------------------


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "node.cli", *words], capture_output=True, text=True, timeout=60, check=False,
        cwd=ROOT, env={**os.environ, **environ},
    )  # fmt: skip


def test_every_wrong_call_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    wrong: dict[str, tuple[list[str], dict[str, str], Exit, str]] = {
        "no invite": (["run", "--home", home], {}, Exit.CONFIG, "echo2-node join INVITE"),
        "a damaged invite": (["join", "echo2-abc", "--home", home], {}, Exit.CONFIG, "copy it again"),
        "an invite from the environment": (["join", "--home", home], {"ECHO2_INVITE": "x"}, Exit.CONFIG, "no invite"),
        "an unknown setting": (["run"], {"ECHO2_HOEM": "x"}, Exit.CONFIG, "did you mean ECHO2_HOME"),
        "a home that cannot be": (["run", "--home", "/proc/nowhere"], {}, Exit.CONFIG, "--home"),
        "no daemon": (["status", "--home", home], {}, Exit.TEMPORARY, "echo2-node run"),
        "no receipts": (["receipts", "list", "--home", home], {}, Exit.CONFIG, "no run was joined"),
        "no key": (["keys", "show", "--home", home], {}, Exit.CONFIG, "no key file"),
    }
    for sentence, (words, environ, code, said) in wrong.items():
        done = command(*words, **environ)
        assert done.returncode == code, (sentence, done.stderr)
        assert said in done.stderr, sentence
        assert len(done.stderr.strip().splitlines()) == 1, (sentence, done.stderr)


def test_a_wrong_flag_is_a_usage_error() -> None:
    assert command("pause", "--for", "soon").returncode == Exit.USAGE
    assert command("jion").returncode == Exit.USAGE


def test_a_second_daemon_is_told_that_one_runs(tmp_path: Path) -> None:
    invite = Invite(run=RUN, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"]).to_text()
    with locked(tmp_path):
        done = command("join", invite, "--home", str(tmp_path))
    assert done.returncode == Exit.TEMPORARY
    assert "already runs" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_settings_are_shown_with_their_origin_and_without_the_invite() -> None:
    done = command("config", "get", "--origin", ECHO2_NAME="fox", ECHO2_INVITE="echo2-secret")
    assert "name = fox  # from ECHO2_NAME" in done.stdout
    assert "secret" not in done.stdout
