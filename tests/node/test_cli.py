"""`echo2-node`: each wrong call is one line and an exit code."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.node import cli
from echo2.node.command_line import node_answers
from echo2.node.config import NodeConfig
from echo2.node.errors import own_code
from echo2.node.home import lock_home, run_folder
from echo2.node.links import local_discovery
from echo2.node.rollouts.outbox import Outbox
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import generate_key, public_bytes, write_key
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.exit_codes import Exit
from tests.support.children import into_a_closed_pipe
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.paths import ROOT

RUN, LEASE, NODE = b"r" * 32, b"l" * 16, b"n" * 32


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echo2.node.cli", *words], capture_output=True, text=True, timeout=60, check=False,
        cwd=ROOT, env={**os.environ, **environ},
    )  # fmt: skip


def test_every_wrong_call_is_one_line_and_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, worked, garbled = str(tmp_path / "home"), str(tmp_path), str(tmp_path / "garbled")
    (tmp_path / "node.key").touch()
    (tmp_path / "garbled").mkdir()
    (tmp_path / "garbled" / "invite").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"echo2-" + b"1" * 3_000_000)
    wrong: dict[str, tuple[list[str], dict[str, str], Exit, str]] = {
        "no invite": (["run", "--home", home], {}, Exit.CONFIG, "echo2-node join INVITE"),
        "a damaged invite": (["join", "echo2-abc", "--home", home], {}, Exit.CONFIG, "copy it again"),
        "an invite from the environment": (["join", "--home", home], {"ECHO2_INVITE": "x"}, Exit.CONFIG, "no invite"),
        "an invite's file that is none": (["join", "--invite-file", home], {}, Exit.CONFIG, "correct --invite-file"),
        "an invite twice": (["join", "echo2-abc", "--invite-file", home], {}, Exit.CONFIG, "given twice"),
        "an unknown setting": (["run"], {"ECHO2_HOEM": "x"}, Exit.CONFIG, "did you mean ECHO2_HOME"),
        "hours that never come": (["run", "--hours", "8:00-8:00"], {}, Exit.CONFIG, "8:00-8:00 never comes"),
        "hours on no day": (["join", "--hours", "xyz 8:00-9:00"], {}, Exit.CONFIG, "unknown day xyz"),
        "a program's path": (["run", "--yield-to", "/bin/x"], {}, Exit.CONFIG, "name the program alone"),
        "an occasion that is none": (
            ["run", "--yield-when", "tv"],
            {},
            Exit.CONFIG,
            "'gpu', 'fullscreen', 'keyboard', 'battery'",
        ),
        "a quiet below zero": (["run", "--quiet", "-1"], {}, Exit.CONFIG, "quiet should be greater"),
        "a home that cannot be": (["run", "--home", "/proc/nowhere"], {}, Exit.CONFIG, "--home"),
        "no daemon": (["status", "--home", home], {}, Exit.UNREACHABLE, "echo2-node join INVITE"),
        "no daemon to watch": (["top", "--once", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon to share": (["status", "--share", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon's privacy": (["privacy", "show", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon to pause": (["pause", "--gpu", "1", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon to slow": (["slow", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "half slow": (["slow", "half", "--home", home], {}, Exit.CONFIG, "slow takes on, off or auto, not 'half'"),
        "no log": (["logs", "-f", "--home", home], {}, Exit.CONFIG, "there is no log in"),
        "no key to rotate": (["keys", "rotate", "--home", home], {}, Exit.CONFIG, "no key file"),
        "an upload of nothing": (["run", "--uplink", "0"], {}, Exit.CONFIG, "uplink should be greater"),
        "a month below zero": (["join", "--month-down", "-1"], {}, Exit.CONFIG, "month_down should be greater"),
        "a month that is none": (["run"], {"ECHO2_MONTH_UP": "much"}, Exit.CONFIG, "month_up"),
        "a disk of nothing": (["run", "--disk", "0"], {}, Exit.CONFIG, "disk should be greater"),
        "a duty of nothing": (["run", "--duty", "0"], {}, Exit.CONFIG, "duty should be greater"),
        "a duty above all": (["join", "--duty", "101"], {}, Exit.CONFIG, "duty should be less"),
        "a reserve below zero": (["run", "--reserve", "-1"], {}, Exit.CONFIG, "reserve should be greater"),
        "a frozen card": (["run", "--hottest", "-10"], {}, Exit.CONFIG, "hottest should be greater"),
        "a molten card": (["run", "--hottest", "900"], {}, Exit.CONFIG, "hottest should be less"),
        "a power of nothing": (["run", "--power", "0"], {}, Exit.CONFIG, "power should be greater"),
        "slow hours that never come": (["run", "--slow-hours", "8:00-8:00"], {}, Exit.CONFIG, "never comes"),
        "a slow duty of nothing": (["run"], {"ECHO2_SLOW_DUTY": "1"}, Exit.CONFIG, "slow_duty should be greater"),
        "a cap with a typing error": (
            ["run"],
            {"ECHO2_SLOW_UPLNK": "1"},
            Exit.CONFIG,
            "did you mean ECHO2_SLOW_UPLINK",
        ),
        "a directory without its key": (
            ["discover"],
            {"ECHO2_DIRECTORIES": "https://a.b/c"},
            Exit.CONFIG,
            "directories",
        ),
        "a directory that is no page": (["discover"], {"ECHO2_DIRECTORIES": "runs"}, Exit.CONFIG, "directories"),
        "no receipts": (["receipts", "list", "--home", home], {}, Exit.CONFIG, "no run was joined"),
        "no lease": (["appeal", "mine", "--home", home], {}, Exit.CONFIG, "give its 32 hexadecimal digits"),
        "an ask that is no number": (["config", "set", "ask", "NaN/h"], {}, Exit.CONFIG, "is no ask"),
        "an ask below zero": (["config", "set", "ask", "-1/h"], {}, Exit.CONFIG, "'-1/h' is no ask"),
        "a tariff below zero": (["config", "set", "tariff", "-.5", "--home", home], {}, Exit.CONFIG, "tariff"),
        "a setting that is none": (["config", "set", "aks", "1"], {}, Exit.CONFIG, "did you mean ask"),
        "a setting that is none, with =": (["config", "set", "aks=1"], {}, Exit.CONFIG, "did you mean ask"),
        "a setting without a value": (["config", "set", "uplink"], {}, Exit.CONFIG, "a value behind uplink"),
        "no earnings": (["earnings", "--home", home], {}, Exit.CONFIG, "no run was joined"),
        "a formula for an account": (["payout", "set", "=1+1", "--home", home], {}, Exit.CONFIG, "as a formula does"),
        "no run to be paid by": (["payout", "show", "--home", home], {}, Exit.CONFIG, "no run was joined"),
        "nothing to leave": (["leave", "--forget", "--home", home], {}, Exit.CONFIG, "there is nothing to leave"),
        "a question without an answer": (["leave", "--forget", "--home", worked], {}, Exit.CONFIG, "add --yes"),
        "no key": (["keys", "show", "--home", home], {}, Exit.CONFIG, "no key file"),
        "a page without a host": (["join", "https://", "--home", home], {}, Exit.CONFIG, "this is no invite"),
        "a page that is no page": (["join", "file:///etc/x", "--home", home], {}, Exit.CONFIG, "page with https://"),
        "a half address": (["join", "https://[::1", "--home", home], {}, Exit.CONFIG, "is no address of a page"),
        "a port that is none": (["join", "http://127.0.0.1:99999", "--home", home], {}, Exit.CONFIG, "correct it"),
        "a page that is away": (["join", "https://127.0.0.1:1", "--home", home], {}, Exit.TEMPORARY, "try later"),
        "an empty invite": (["join", "", "--home", home], {}, Exit.CONFIG, "this is no invite"),
        "an invite of 3 MB": (["join", "--invite-file", f"{worked}/long"], {}, Exit.CONFIG, "copy it again"),
        "no invite's file": (["join", "--invite-file", f"{worked}/none"], {}, Exit.CONFIG, "correct --invite-file"),
        "a garbled invite": (["run", "--home", garbled], {}, Exit.CONFIG, "this is no invite"),
        "a blank fingerprint": (["join", "a.b", "--accept-fingerprint", " "], {}, Exit.CONFIG, "names no fingerprint"),
        "a home that is a file": (["run", "--home", f"{worked}/long"], {}, Exit.CONFIG, "put its path or its perm"),
        "a device for a home": (["status", "--home", "/dev/null"], {}, Exit.UNREACHABLE, "no node runs in /dev/null"),
        "a log of a file": (["logs", "--home", f"{worked}/long"], {}, Exit.CONFIG, "cannot be read"),
        "nowhere to forget": (["privacy", "forget", "--home", "/proc/x"], {}, Exit.CONFIG, "choose another folder"),
        "no daemon to resume": (["resume", "--gpu", "7", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon to finish": (["finish", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon to stream": (["top", "--json", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "no daemon to fetch": (["receipts", "fetch", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "slow in capitals": (["slow", "ON", "--home", home], {}, Exit.CONFIG, "slow takes on, off or auto, not 'ON'"),
        "no run to leave": (["leave", "--home", garbled], {}, Exit.CONFIG, "there is nothing to leave"),
        "a copy of no key": (["keys", "backup", f"{worked}/k", "--home", home], {}, Exit.CONFIG, "no key file"),
        "an open key": (["keys", "rotate", "--yes", "--home", worked], {}, Exit.CONFIG, "run chmod 600"),
        "no rates": (["bench", "--home", home], {}, Exit.CONFIG, "no run was joined"),
        "a doctor's invite": (["doctor", "echo2-xyz"], {}, Exit.CONFIG, "copy it again"),
        "a lease that is none": (["why", "--lease", "x", "--home", home], {}, Exit.CONFIG, "its 32 hexadecimal digits"),
        "an hour that is none": (["config", "set", "hours", "25:00-26:00"], {}, Exit.CONFIG, "25:00 is no time of day"),
        "half of two days": (["run", "--hours", "mon-"], {}, Exit.CONFIG, "'mon-' is neither days nor times"),
        "slow hours in words": (["config", "set", "slow_hours", "late"], {}, Exit.CONFIG, "unknown day late"),
        "an upload in words": (["config", "set", "uplink", "fast"], {}, Exit.CONFIG, "should be a number, not 'fast'"),
        "an endless upload": (["run", "--uplink", "inf"], {}, Exit.CONFIG, "uplink should be a finite number"),
        "a quiet that is no number": (["run", "--quiet", "nan"], {}, Exit.CONFIG, "quiet should be a finite number"),
        "a month of nothing": (["config", "set", "month_up=0"], {}, Exit.CONFIG, "month_up should be greater"),
        "half a watt": (["config", "set", "power", "1.5"], {}, Exit.CONFIG, "power should be a whole number"),
        "rows of nothing": (["run", "--rows", "0"], {}, Exit.CONFIG, "rows should be greater"),
        "a priority above all": (["run", "--priority", "max"], {}, Exit.CONFIG, "'idle', 'low' or 'normal', not 'max'"),
        "an empty upload": (["config", "set", "uplink", ""], {}, Exit.CONFIG, "; `echo2-node config unset uplink` rem"),
        "an ask of nothing": (
            ["config", "set", "ask="],
            {},
            Exit.CONFIG,
            "; `echo2-node config unset ask` removes the",
        ),
        "a server called none": (["config", "set", "server", "none"], {}, Exit.CONFIG, "config unset server` removes"),
        "a duty called unset": (
            ["config", "set", "duty", "unset", "--home", f"{worked}/a b"],
            {},
            Exit.CONFIG,
            f"; `echo2-node config unset duty --home '{worked}/a b'` removes the setting",
        ),
        "a duty in words": (["run", "--duty", "half"], {}, Exit.CONFIG, "duty should be a whole number, not 'half'"),
        "a duty of no device": (["run", "--duty", "gpu1=50"], {}, Exit.CONFIG, "devices: has 'gpu1': name a device"),
        "a device above all": (["join", "--duty", "1=101"], {}, Exit.CONFIG, "devices.1.duty should be less than"),
        "one device in two forms": (
            ["run", "--duty", "1=50", "--power", "cuda:1=9"],
            {},
            Exit.CONFIG,
            "names 1 and cuda:1",
        ),
        "threads in words": (["run", "--threads", "many"], {}, Exit.CONFIG, "threads should be a whole number"),
        "a slow line of nothing": (["run", "--slow-uplink", "0"], {}, Exit.CONFIG, "slow_uplink should be greater"),
        "no daemon to cap": (["caps", "duty=50", "--home", home], {}, Exit.UNREACHABLE, "no node runs in"),
        "a cap without a value": (["caps", "uplink", "--home", home], {}, Exit.CONFIG, "a value behind uplink, as in"),
        "a device that is none": (["run", "--gpu", "gpu9"], {}, Exit.CONFIG, "not 'gpu9'"),
        "a list without its key": (["config", "set", "directories", "https://a.b/x"], {}, Exit.CONFIG, "runs.json#KEY"),
        "a removal with a typing error": (["config", "unset", "uplnk"], {}, Exit.CONFIG, "did you mean uplink"),
        "a setting without a name": (["config", "set", "=", "1"], {}, Exit.CONFIG, "unknown key ="),
        "a look at no setting": (["config", "get", "hour"], {}, Exit.CONFIG, "did you mean hours"),
    }
    monkeypatch.setattr(local_discovery, "look", partial(local_discovery.look, 0.1))
    told = {}
    for sentence, (words, environ, code, said) in wrong.items():
        done = CliRunner().invoke(cli.app, words, env=environ)
        assert done.exit_code == code, (sentence, done.stderr)
        assert said in done.stderr, sentence
        assert len(done.stderr.strip().splitlines()) == 1, (sentence, done.stderr)
        told[sentence] = done.stderr
    words, environ, code, _ = wrong["an unknown setting"]
    process = command(*words, **environ)
    assert (process.returncode, process.stderr) == (code, told["an unknown setting"])


USAGES = {
    "pause --for 0s": "a duration is a number above 0",
    "pause --for -1h": "a duration is a number above 0",
    "pause --for 1w": "a duration is a number above 0",
    "pause --for 1e9d": "a duration is a number above 0",
    "logs --most 0": "greater than or equal to",
    "logs --most many": "Invalid value for '--most'",
    "receipts list --most 0": "greater than or equal to",
    "discover --seconds 0": "greater than or equal to",
    "discover --seconds 90": "less than or equal to 60",
    "privacy hide": "No such command 'hide'",
    "config set": "Missing argument",
    "top --twice": "No such option: --twice",
    "leave --forgot": "No such option: --forgot",
    "leave --forget --home=": "the name of the folder is empty",
}


@pytest.mark.parametrize("words", USAGES)
def test_a_wrong_word_is_a_usage_error_that_names_it(words: str) -> None:
    done = CliRunner().invoke(cli.app, words.split())
    assert done.exit_code == Exit.USAGE
    said = [text for text in done.stderr.splitlines() if text.startswith("Error: ")]
    assert len(said) == 1, done.stderr
    assert USAGES[words] in said[0]


def test_the_schema_of_the_settings_names_each_with_its_meaning() -> None:
    done = CliRunner().invoke(cli.app, ["config", "schema"])
    schema = json.loads(done.stdout)["properties"]
    assert schema["uplink"]["description"] == "Most payload sent to other peers, in Mbit/s. Unset: no limit."
    assert schema.keys() == NodeConfig.model_fields.keys()


@pytest.mark.slow
def test_a_wrong_flag_is_a_usage_error() -> None:
    assert command("pause", "--for", "soon").returncode == Exit.USAGE
    assert command("jion").returncode == Exit.USAGE
    done = command("config", "set", "ask", "0.12/h", "--hoem", "x")
    assert (done.returncode, "No such option: --hoem" in done.stderr) == (Exit.USAGE, True)


def test_the_version_names_the_protocol() -> None:
    done = command("version")
    assert (done.returncode, done.stdout.endswith("protocol 1 to 3\n")) == (0, True)


@pytest.mark.slow
def test_a_second_daemon_ends_with_the_reason_that_one_runs(tmp_path: Path) -> None:
    invite = Invite(run=RUN, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"]).to_text()
    with lock_home(tmp_path):
        done = command("join", invite, "--home", str(tmp_path))
    assert done.returncode == Exit.TEMPORARY
    assert "already runs" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_settings_are_shown_with_their_origin_and_without_the_invite() -> None:
    done = command("config", "get", "--origin", ECHO2_NAME="fox", ECHO2_INVITE="echo2-secret")
    assert 'name = "fox"  # from ECHO2_NAME' in done.stdout
    assert "secret" not in done.stdout
    shown = dict(row.partition("  # ")[0].split(" = ", 1) for row in done.stdout.splitlines())
    assert (shown["relay"], shown["uplink"], shown["yield_to"]) == ("false", "unset", "[]")


@pytest.mark.slow
def test_a_setting_is_written_shown_and_removed(tmp_path: Path) -> None:
    environ = {"ECHO2_CONFIG": str(tmp_path / "node.toml"), "ECHO2_HOME": str(tmp_path / "home")}
    done = command("config", "set", "ask", "0.12/h", **environ)
    assert (done.returncode, done.stdout.splitlines()[0]) == (Exit.OK, 'ask = "0.12/h"')
    assert 'ask = "0.12/h"  # ' in command("config", "get", "ask", **environ).stdout
    assert command("config", "unset", "ask", **environ).stdout.splitlines()[0] == "ask = unset"
    assert (tmp_path / "home" / "node.toml").read_text() == ""
    assert not (tmp_path / "node.toml").exists()
    two = [str(tmp_path / name) for name in ("gpu0", "gpu1")]
    for home, ask in zip(two, ("0.08/h", "0.30/h"), strict=True):
        shown = command("config", "set", "ask", ask, "--home", home, **environ).stdout.splitlines()
        assert shown[:2] == [f'ask = "{ask}"', f"{home}/node.toml: for the node in {home}"]
    assert 'ask = "0.08/h"  # ' in command("config", "get", "ask", "--home", two[0], **environ).stdout
    assert command("config", "path", "--home", two[1], **environ).stdout == f"{two[1]}/node.toml\n"


COMMAND = [sys.executable, "-m", "echo2.node.cli"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a home with one undecided submission, and answer on its control socket."""
    home, key = tmp_path_factory.mktemp("home"), generate_key()
    invite = FakeCoordinator(tmp_path_factory.mktemp("coordinator")).invite()
    write_key(home / "node.key", key)
    (home / "invite").write_text(invite.to_text())
    folder = run_folder(home, invite.run)
    folder.mkdir(parents=True)
    with closing(Outbox(folder / "outbox.sqlite", node=public_bytes(key), limit=9)) as outbox:
        outbox.put(bytes(16), b"a submission", 1)

    async def answered(asked: dict[str, object]) -> dict[str, object]:
        escapes = "\x1b[2J\nall is well"
        return {
            "phase": "working",
            "engines": [{"engine": "transformers", "most_rows": 8, "version": None}],
            "blocked": escapes,
            "refusals": [{"reason": escapes}],
            "not_believed": [escapes],
        }

    loop = asyncio.new_event_loop()
    commands = dict.fromkeys(("status", "why", "pause"), answered)
    server = ControlSocket(socket_path(home), commands, logger="node", own_code=own_code)
    task = loop.create_task(server.run())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    while not socket_path(home).exists():
        pass
    yield home
    loop.call_soon_threadsafe(task.cancel)
    loop.call_soon_threadsafe(task.add_done_callback, lambda _: loop.stop())
    thread.join()
    loop.close()


@pytest.mark.slow
def test_rows_of_an_answer_stand_under_their_names(home: Path) -> None:
    shown = command("status", "--home", str(home)).stdout.splitlines()
    assert shown[:4] == ["phase: working", "engines: ", "  engine        most rows", "  transformers  8"]


def test_counts_of_bytes_are_shown_with_their_units_and_are_bytes_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    engine = {"device": "cpu", "memory_used": 61_203_283_968, "memory": 67_362_791_424}
    answer = {"engines": [engine, {**engine, "memory_used": None}], "received_bytes": 0, "sent_bytes": 1_204_000,
              "payload_bytes": 27_000, "payloads": [{"era": 1, "version": 2, "nbytes": 999_600}]}  # fmt: skip
    node_answers.show(answer, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "engines: ", "  device  memory used  memory", "  cpu     61.2 GB      67.4 GB",
        "  cpu                  67.4 GB",
        "received: 0 B", "sent: 1.2 MB", "fetched: 27 kB", "payloads: ", "  era  version  size", "  1    2        1 MB",
    ]  # fmt: skip
    node_answers.show(answer, as_json=True)
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize(
    "words",
    ["--help", "status", "why --json", "pause", "receipts list", "receipts verify", "keys show", "config get", "doctor",
     "discover --seconds 0.1"],
)  # fmt: skip
@pytest.mark.slow_for("doctor", "receipts list", "keys show", "receipts verify", "config get", "discover --seconds 0.1")
def test_a_command_whose_reader_has_closed_ends_in_silence(words: str, home: Path, repository: Path) -> None:
    argv = [*COMMAND, *words.split()]
    if words.split()[0] not in ("--help", "config", "doctor", "discover"):
        argv += ["--home", str(home)]
    assert into_a_closed_pipe(argv, cwd=repository) == (Exit.CLOSED_PIPE, "")


@pytest.mark.slow
def test_the_words_of_a_coordinator_do_not_control_the_terminal(home: Path, repository: Path) -> None:
    """Before, a refusal's sentence cleared the screen of the owner who asked why his node does not work."""
    for command_name in ("why", "status"):
        argv = [*COMMAND, command_name, "--home", str(home)]
        told = subprocess.run(argv, cwd=repository, capture_output=True, text=True, timeout=60, check=True).stdout
        assert told.splitlines() == [
            "phase: working", "engines: ", "  engine        most rows", "  transformers  8",
            "blocked: ?[2J?all is well", "refusals: ", "  reason", "  ?[2J?all is well", "not believed: ",
            "  ?[2J?all is well",
        ]  # fmt: skip


def test_a_closed_log_ends_no_node(repository: Path) -> None:
    program = (
        "from echo2.runtime.closed_pipe import exit_on_closed_pipe\n"
        "from echo2.runtime.logs import set_up_logging, to_stream\n"
        "import structlog, sys\n"
        "with exit_on_closed_pipe(141):\n"
        "    set_up_logging(to_stream())\n"
        "    for number in range(3): structlog.get_logger('node').info('group accepted', number=number)\n"
        "    raise SystemExit(7)\n"
    )
    argv = [sys.executable, "-c", program]
    assert into_a_closed_pipe(argv, errors_too=True, cwd=repository)[0] == 7


def test_an_invite_comes_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    home, file = str(tmp_path / "home"), tmp_path / "invite"
    file.write_text("echo2-abc\n")
    by_file = CliRunner().invoke(cli.app, ["join", "--invite-file", str(file), "--home", home])
    by_input = CliRunner().invoke(cli.app, ["join", "-", "--home", home], input="echo2-abc\n")
    assert by_file.exit_code == by_input.exit_code == Exit.CONFIG
    assert "copy it again" in by_file.stderr
    assert by_file.stderr == by_input.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["coerced", "ASCII"])
def test_a_home_with_umlauts_and_spaces_works_in_the_locale_c_on_a_dumb_terminal(
    tmp_path: Path, more: dict[str, str]
) -> None:
    home, plain = tmp_path / "ä ö" / "no de", {"LC_ALL": "C", "LANG": "C", "TERM": "dumb", **more}
    home.mkdir(parents=True)
    written = command("config", "set", "uplink", "8", "--home", str(home), **plain)
    assert (written.returncode, written.stderr) == (Exit.OK, "")
    assert (home / "node.toml").read_text() == "uplink = 8\n"
    asked = command("status", "--home", str(home), **plain)
    assert (asked.returncode, asked.stderr.count("\n")) == (Exit.UNREACHABLE, 1)
