"""Each command of the operator gives its exit code, one line on stderr at an error, and damages nothing."""

import http.server
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options, making_app
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder, lock_run
from echo2.coordinator.demo.demo import Played
from echo2.coordinator.demo.demo_settings import DemoOptions
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import BroadcastView, CapacityView, FaultView, RunState, StepPoint
from echo2.coordinator.run import model_folder, setup
from echo2.coordinator.settings.network_config import WebSection
from echo2.p2p.discovery.invite import Invite
from echo2.runtime.exit_codes import Exit
from echo2.runtime.units import minute
from tests.support.run_folders import NOW, write_model
from tests.support.small_hub import COMMIT, SmallHub, serving


@pytest.fixture(autouse=True)
def _at_the_time_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_options, "now", lambda: NOW)
    monkeypatch.setattr(
        model_folder, "check_model", lambda folder, divided: []
    )  # folders written by hand are no models


def said(*words: str | Path) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def refused(*words: str | Path) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its one line."""
    code, out, err = said(*words)
    assert out == ""
    assert err.startswith("echo2-coord: ")
    assert err.count("\n") == 1
    return code, err.removeprefix("echo2-coord: ").strip()


def test_init_prints_an_invite_and_how_to_take_root_offline(tmp_path: Path, model: Path) -> None:
    words = ("--model", model, "--name", "mine", "--task", "add", "--steps", "9", "--set", "run.staleness=6", "--yes")
    code, out, _ = said("init", tmp_path / "run", *words)
    assert code == 0
    invite = Invite.from_text(out.partition("echo2-node join ")[2].split()[0])
    run = setup.load_run(tmp_path / "run", env={}, now=NOW)
    assert invite.run == run.id
    assert f"\nor by the page:   they compare the fingerprint {invite.fingerprint}\n" in out
    assert str(tmp_path / "run/keys/root.pem") in out
    assert (run.runspec.name, run.runspec.tasks[0].name, run.runspec.staleness) == ("mine", "add", 6)
    assert run.config.run.steps == 9


def test_init_prints_the_signed_settings_also_to_a_script(tmp_path: Path, model: Path) -> None:
    code, out, _ = said("init", tmp_path / "run", "--model", model, "--task", "reverse", "--yes")
    assert code == 0
    signed = setup.load_run(tmp_path / "run", env={}, now=NOW).runspec
    lines = {tuple(text_line.split()) for text_line in out.splitlines() if text_line.startswith("  ")}
    assert {
        ("task", signed.tasks[0].name),
        ("group_size", str(signed.group_size)),
        ("limit", str(signed.limit)),
    } <= lines


@pytest.mark.slow
def test_init_takes_several_tasks_by_weight_and_prints_how_prompts_are_written(tmp_path: Path, model: Path) -> None:
    words = ("--task", "3 add", "--task", "reverse", "--set", "run.kind=single")
    code, out, err = said("init", tmp_path / "run", "--model", model, *words, "--set", "run.heldout=20", "--yes")
    assert (code, err) == (0, "")
    spec = setup.load_run(tmp_path / "run", env={}, now=NOW).runspec
    assert [(task.name, task.kind, task.weight) for task in spec.tasks] == [
        ("add", "single", 3),
        ("reverse", "single", 1),
    ]
    signed = [row.strip() for row in out.splitlines() if row.startswith("  ")]
    assert "task          3 add + reverse" in signed
    assert "kind          single" in signed
    assert "template      plain" in signed
    assert "thinking      not passed to the template" in signed


def test_the_table_of_models_has_the_settings_of_each(repository: Path) -> None:
    """A model's preset is documented: docs/running-a-run.md has all of it, and `init` prints the signed settings."""
    table = (repository / "docs/running-a-run.md").read_text()
    for name, preset in setup.PRESETS.items():
        rows = re.findall(rf"^\| `{name}` \| .* \| (.*) \|$", table, re.MULTILINE)
        wanted = [
            f"`{part}.{key} = {value!r}`".replace("'", '"') for part in preset for key, value in preset[part].items()
        ]
        assert rows == [", ".join(wanted)], f"docs/running-a-run.md does not say what --model {name} sets"


def test_init_encrypts_the_keys_by_the_passphrase_of_the_environment(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", "open sesame")
    code, out, _ = said("init", tmp_path / "run", "--model", model, "--task", "reverse", "--yes")
    assert code == 0
    assert "encrypted" in out
    assert "open sesame" not in out
    assert all(b"ENCRYPTED" in path.read_bytes() for path in (tmp_path / "run/keys").glob("*.pem"))


def test_init_refuses_a_format_that_no_class_computes_in_and_such_a_run_does_not_start(
    tmp_path: Path, model: Path, home: Path
) -> None:
    words = ("--model", model, "--task", "reverse", "--set", "run.compute_dtype=bfloat16", "--yes")
    code, _, err = said("init", tmp_path / "new", *words)
    assert (code, (tmp_path / "new").exists()) == (Exit.CONFIG, False)
    assert "engines admits no class in bfloat16" in err
    admitted = ("--set", 'run.engines=["transformers/bfloat16"]', "--no-calibrate")
    code, _, err = said("init", tmp_path / "new", *words, *admitted)
    assert code == 0
    assert f"echo2-coord calibrate bfloat16 --home {tmp_path / 'new'}" in err
    settings = home / "coordinator.toml"
    settings.write_text(settings.read_text().replace('compute_dtype = "float32"', 'compute_dtype = "bfloat16"', 1))
    code, message = refused("run", "--home", home)
    assert "set compute_dtype to one that it admits" in message


@pytest.mark.parametrize("option", [("--lora-alpha", "8"), ("--lora-targets", "q_proj"), ("--base-format", "q4_0")])
def test_init_refuses_to_describe_an_adapter_that_it_was_not_asked_for(
    option: tuple[str, str], tmp_path: Path, model: Path
) -> None:
    code, _, err = said("init", tmp_path / "run", "--model", model, "--yes", *option)
    assert (code, (tmp_path / "run").exists()) == (Exit.CONFIG, False)
    assert "add --lora-rank" in err


def test_init_makes_an_adapter_over_a_frozen_base(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", "model.layers.0.mlp.up_proj.weight", (2, 32))
    words = ("--model", source, "--task", "reverse", "--yes", "--lora-rank", "4", "--base-format", "q8_0")
    assert said("init", tmp_path / "run", *words)[0] == 0
    settings = json.loads((tmp_path / "run/model/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (4, 8.0, ["up_proj"])


@pytest.mark.parametrize(("answer", "code"), [("n\n", 0), ("", Exit.CONFIG)])
@pytest.mark.slow_but("-78")
def test_on_a_terminal_init_asks_before_it_signs(
    answer: str, code: int, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making_app, "_at_a_terminal", lambda: True)
    words = ["init", str(tmp_path / "run"), "--model", str(model), "--task", "reverse"]
    result = CliRunner().invoke(cli.app, words, input=answer)
    assert result.exit_code == code
    assert "These are signed" in result.stdout
    assert not (tmp_path / "run").exists()
    assert CliRunner().invoke(cli.app, words, input="y\n").exit_code == 0
    assert (tmp_path / "run/run.spec").exists()


def test_the_invite_is_printed_alone_and_without_opening_a_key(home: Path) -> None:
    (home / "keys/channel.pem").unlink()
    code, out, _ = said("invite", "--home", home)
    assert code == 0
    assert Invite.from_text(out).addresses


def test_the_folder_may_be_named_by_a_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO2_COORD_HOME", str(home))
    assert said("invite")[0] == 0


def test_the_keys_are_shown_without_their_private_half(home: Path) -> None:
    (home / "keys/root.pem").unlink()
    (home / "keys/ledger.pem").unlink()
    code, out, _ = said("keys", "show", "--home", home)
    rows = {text_line.split()[0]: text_line for text_line in out.splitlines()}
    assert code == 0
    assert rows["root"].endswith("offline")
    assert rows["ledger"].endswith(f"missing: {home / 'keys/ledger.pem'}")
    assert rows["policy"].endswith(str(home / "keys/policy.pem"))
    assert setup.read_documents(RunFolder(home))[1][0].run.hex() in rows["run"]


def test_the_version_names_the_protocol() -> None:
    code, out, _ = said("version")
    assert code == 0
    assert out.endswith("protocol 1 to 3\n")


WRONG: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "settings that are no TOML": (lambda h: (h / "coordinator.toml").write_text("[run"), 78, "is not TOML"),
    "an unknown key": (lambda h: (h / "coordinator.toml").write_text("[web]\nprt = 1"), 78, "did you mean web.port?"),
    "a wrong type": (
        lambda h: (h / "coordinator.toml").write_text("[web]\nport = 1.5"),
        78,
        "web.port should be a whole",
    ),
    "no settings": (lambda h: (h / "coordinator.toml").unlink(), 78, "make one with `echo2-coord init"),
    "a key for all to read": (lambda h: (h / "keys/ledger.pem").chmod(0o644), 78, "run chmod 600"),
    "a key missing": (lambda h: (h / "keys/policy.pem").unlink(), 78, "put it back from your backup"),
    "a torn Root": (lambda h: (h / "root/1.root").write_bytes(b""), 81, "Root 1 is damaged"),
    "another tokenizer": (
        lambda h: (h / "model/tokenizer.json").write_text("{}"),
        81,
        "is not the file",
    ),
    "a lock that is a folder": (lambda h: (h / "lock").mkdir(), 78, "cannot write in run folder"),
}


@pytest.mark.parametrize("what", WRONG)
def test_run_refuses(what: str, home: Path) -> None:
    damage, expected, sentence = WRONG[what]
    damage(home)
    code, message = refused("run", "--home", home)
    assert code == expected
    assert sentence in message


def test_run_refuses_a_log_that_is_a_folder(home: Path) -> None:
    (home / "logs/coordinator.jsonl").mkdir(parents=True)
    free = ("--port", "0", "--set", "network.listen=/ip4/127.0.0.1/tcp/0", "--set", "https.listen=[]")
    code, message = refused("run", "--home", home, *free)  # the page is there before the log
    assert code == 78
    assert "cannot write the log" in message


def test_run_refuses_a_missing_folder(tmp_path: Path) -> None:
    code, message = refused("run", "--home", tmp_path / "none")
    assert (code, message) == (
        78,
        f"no run in {tmp_path / 'none'}: name its folder with --home, or make one with "
        f"`echo2-coord init {tmp_path / 'none'}`",
    )


def test_run_refuses_a_folder_in_which_a_coordinator_runs(home: Path) -> None:
    with lock_run(RunFolder(home)):
        code, message = refused("run", "--home", home)
    assert code == Exit.TEMPORARY
    assert f"process {os.getpid()}" in message


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("web.port={}", "--port"),
        ("network.listen=/ip4/127.0.0.1/tcp/{}", "network.listen"),
        ("https.listen=/ip4/127.0.0.1/tcp/{}", "https.listen"),
    ],
)
def test_run_refuses_a_port_that_is_taken(setting: str, fix: str, home: Path) -> None:
    free = ("web.port=0", "network.listen=/ip4/127.0.0.1/tcp/0", "https.listen=[]")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        sets = [word for value in (*free, setting.format(port)) for word in ("--set", value)]
        code, message = refused("run", "--home", home, *sets)
    assert code == 78
    assert message.startswith(f"port {port} of 127.0.0.1 is taken: choose another")
    assert fix in message


def test_run_refuses_a_wrong_passphrase(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", "right")
    assert said("init", tmp_path / "run", "--model", model, "--task", "reverse", "--yes")[0] == 0
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", "wrong")
    code, message = refused("run", "--home", tmp_path / "run")
    assert code == 78
    assert "the passphrase is wrong" in message


def test_a_value_of_the_command_line_is_checked_like_the_files(home: Path) -> None:
    assert refused("run", "--home", home, "--steps", "0")[1].startswith("command line: run.steps should be")
    assert refused("run", "--home", home, "--log-level", "loud")[1].startswith(
        "--log-level should be one of debug, info"
    )
    assert said("run", "--home", home, "--steps", "many")[0] == Exit.USAGE
    assert said("fold")[0] == Exit.USAGE


def test_init_over_a_run_is_refused(home: Path, model: Path) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    code, message = refused("init", home, "--model", model, "--yes")
    assert code == 78
    assert "already contains a run, which was not changed" in message
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


# --- status


def a_picture() -> RunState:
    numbers = {field.name: 0 for field in msgspec.structs.fields(RunState) if field.type in (int, float)}
    lists = {field.name: [] for field in msgspec.structs.fields(RunState) if str(field.type).startswith("list")}
    capacity = CapacityView(
        step_seconds=None, turnaround_seconds=None, rollouts_per_step=8, publish_every=1, supply=0, need=None, advice=""
    )
    words = {"run": "ab", "name": "mine", "model": "tiny", "phase": "training", "invite": "echo2-x", "objective": ""}
    own = {
        "capacity": capacity,
        "broadcast": BroadcastView(source="12D3KooW", samples=9, median=0.5, p90=1.1, p95=1.25, slowest=2.0, version=4),
        "idle": 0.25,
        "refused": {"late": 3},
        "era": 1,
        "steps_wanted": 9,
        "faults": [FaultView(at=NOW, what="the disk is full")],
    }
    return RunState(**{**numbers, **lists, **words, **own})


@pytest.fixture
def answering() -> Iterator[Callable[[int, bytes], str]]:
    """Start a server that gives one answer to every request; return its address."""
    servers: list[http.server.HTTPServer] = []

    def start(code: int, body: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(code if self.path == "/api/v1/run" else 404)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_status_prints_the_state_of_the_coordinator(answering: Callable[[int, bytes], str]) -> None:
    url = answering(200, msgspec.json.encode(a_picture()))
    code, out, _ = said("status", "--url", url)
    assert code == 0
    assert "idle 25.0 % of the time" in out
    assert "step 0 of 9" in out
    assert "0.50 s after the announcement (median), 1.25 s (p95), 2.00 s (slowest of 9)" in out
    assert re.search(r"^fault    2\d{3}-\d\d-\d\d \d\d:\d\d:\d\d UTC: the disk is full$", out, re.MULTILINE)
    code, out, _ = said("status", "--url", url, "--json")
    assert json.loads(out)["name"] == "mine"


def a_picture_of(home: Path) -> RunState:
    return msgspec.structs.replace(a_picture(), run=setup.load_run(home, env={}, now=NOW).id.hex())


def test_status_finds_the_coordinator_by_its_run_folder(home: Path, answering: Callable[[int, bytes], str]) -> None:
    url = answering(200, msgspec.json.encode(a_picture_of(home)))
    os.environ["ECHO2_COORD_WEB_PORT"] = url.rpartition(":")[2]
    try:
        with lock_run(RunFolder(home)):
            assert said("status", "--home", home)[0] == 0
    finally:
        del os.environ["ECHO2_COORD_WEB_PORT"]


def test_status_shows_no_other_run_that_has_the_port(home: Path, answering: Callable[[int, bytes], str]) -> None:
    (home / "page").write_text(answering(200, msgspec.json.encode(a_picture())))
    code, message = refused("status", "--home", home)
    assert code == Exit.UNREACHABLE
    assert f"no coordinator runs in {home}: " in message
    assert "that of another run answers, mine" in message


@pytest.mark.parametrize(
    ("code", "body", "sentence"),
    [(404, b"", "HTTP 404"), (200, b"<html>", "not JSON"), (200, b"{}", "of another version")],
)
def test_status_recognises_a_server_that_is_no_coordinator(
    code: int, body: bytes, sentence: str, answering: Callable[[int, bytes], str]
) -> None:
    exit_code, message = refused("status", "--url", answering(code, body))
    assert exit_code == Exit.UNREACHABLE
    assert sentence in message


def test_status_without_a_running_coordinator_says_how_to_start_one() -> None:
    with socket.socket() as silent:  # bound, so that nobody else takes the port, and not listening
        silent.bind(("127.0.0.1", 0))
        code, message = refused("status", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert code == Exit.UNREACHABLE
    assert "start one with `echo2-coord run`" in message


def test_an_unspecified_address_is_asked_by_the_loopback() -> None:
    asked = {host: status.address_of(WebSection(host=host, port=1)) for host in ("0.0.0.0", "::", "192.0.2.1")}
    assert asked == {"0.0.0.0": "http://127.0.0.1:1", "::": "http://[::1]:1", "192.0.2.1": "http://192.0.2.1:1"}


def test_status_finds_a_coordinator_that_took_any_free_port(home: Path, answering: Callable[[int, bytes], str]) -> None:
    url = answering(200, msgspec.json.encode(a_picture_of(home)))
    (home / "page").write_text(f"{url}\n")  # as the coordinator leaves it
    with lock_run(RunFolder(home)):
        code, out, _ = said("status", "--home", home, "--json")
    assert code == 0
    assert json.loads(out)["name"] == "mine"


def test_status_in_a_copy_of_a_run_folder_shows_what_the_copy_has_and_not_the_coordinator_of_the_other(
    home: Path, tmp_path: Path, answering: Callable[[int, bytes], str]
) -> None:
    """Before, it showed the other folder's state: the two have one run, one port and one page."""
    copy = tmp_path / "copy"
    (home / "page").write_text(url := answering(200, msgspec.json.encode(a_picture_of(home))))
    shutil.copytree(home, copy)
    history = History(copy / "history.jsonl")
    history.add(StepPoint(step=3, at=NOW, reward=0.5, success=0.5, staleness=0.0, seconds=1.0, metrics={}))
    history.close()
    Database.open(RunFolder(copy).database, now=NOW).close()
    with lock_run(RunFolder(home)):
        code, out, told = said("status", "--home", copy)
        assert said("status", "--home", copy, "--json")[:2] == (Exit.UNREACHABLE, "")
        assert said("status", "--home", home)[0] == 0
    assert code == Exit.UNREACHABLE
    assert told == (
        f"echo2-coord: no coordinator runs in {copy}: the one of this run at {url} serves another folder, and this is "
        "a copy. Name that folder with --home, or that page with `echo2-coord status --url`\n"
    )
    rows = out.splitlines()
    assert rows[1] == f"phase    no coordinator runs in {copy}; step 3, made {minute(NOW)}"
    assert rows[2:] == [
        "groups   0 accepted, 0 refused, 0 expired, 0 too old; 0 undecided, 0 leased", "nodes    0 known"
    ]  # fmt: skip


# --- the invite of a run whose ports the system chooses


@pytest.fixture
def without_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system choose the port of libp2p."""
    monkeypatch.setenv("ECHO2_COORD_NETWORK_LISTEN", "/ip4/127.0.0.1/tcp/0")


@pytest.mark.usefixtures("without_ports")
def test_the_invite_is_that_of_the_running_coordinator_where_the_system_chose_the_port(
    home: Path, answering: Callable[[int, bytes], str]
) -> None:
    text = setup.load_run(home, env={}, now=NOW).invite(["/ip4/127.0.0.1/tcp/39001"])
    url = answering(200, msgspec.json.encode(msgspec.structs.replace(a_picture_of(home), invite=text)))
    (home / "page").write_text(f"{url}\n")
    with lock_run(RunFolder(home)):
        code, out, _ = said("invite", "--home", home)
    assert (code, out.strip()) == (0, text)


@pytest.mark.usefixtures("without_ports")
def test_there_is_no_invite_to_port_0_while_no_coordinator_runs(home: Path) -> None:
    with socket.socket() as silent:  # bound, so that nobody else takes the port, and not listening
        silent.bind(("127.0.0.1", 0))
        (home / "page").write_text(f"http://127.0.0.1:{silent.getsockname()[1]}\n")
        code, message = refused("invite", "--home", home)
    assert code == Exit.UNREACHABLE
    assert f"start it with `echo2-coord run --home {home}`" in message


@pytest.mark.usefixtures("without_ports")
def test_init_names_the_command_for_the_invite_where_the_system_chooses_the_port(tmp_path: Path, model: Path) -> None:
    code, out, _ = said("init", tmp_path / "run", "--model", model, "--task", "add", "--yes")
    assert code == 0
    assert f"`echo2-coord invite --home {tmp_path / 'run'}` prints the invite while it runs" in out
    assert "echo2-node join" not in out


# --- the demo


def test_the_demos_options_and_its_exit_code_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "echo2.coordinator.demo.number_formats.play", lambda options, *_: asked.append(options) or Played(7)
    )
    assert said("demo")[0] == 7
    assert said("demo", "--model", "smollm2", "--nodes", "2", "--seconds", "9", "--keep", "--no-faults")[0] == 7
    assert said("demo", "--ways")[0] == 7
    assert said("demo", "--dtype", "bfloat16")[0] == 7
    assert asked == [
        DemoOptions(),
        DemoOptions(model="smollm2", nodes=2, seconds=9.0, keep=True, faults=False),
        DemoOptions(ways=True),
        DemoOptions(dtype="bfloat16"),
    ]
    assert said("demo", "--dtype", "int8")[0] == Exit.USAGE
    assert said("demo", "--model", "gpt")[0] == Exit.USAGE
    assert said("demo", "--nodes", "0")[0] == Exit.USAGE


def test_a_model_of_a_hub_is_fetched_and_its_commit_is_shown_and_written_down(
    tmp_path: Path, model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    with serving(SmallHub("some-org/Small-1B", files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        named = ("--model", "hf:some-org/Small-1B", "--task", "reverse", "--yes")
        assert refused("init", home, *named)[1].startswith(f"{home} already contains a run")
        assert not (tmp_path / "cache").exists(), "nothing is fetched for a run that cannot be made"
        code, out, _ = said("init", tmp_path / "made", *named)
    assert code == 0
    assert f"\nsome-org/Small-1B is at commit {COMMIT}, in " in f"\n{out}"
    run = setup.load_run(tmp_path / "made", env={}, now=NOW)
    assert run.runspec.model == "some-org/Small-1B"
    assert json.loads((tmp_path / "made/model/source.json").read_text()) == {
        "model": "some-org/Small-1B", "commit": COMMIT,
    }  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    code, out, err = said("init", tmp_path / "other", *named)
    assert (code, (tmp_path / "other").exists()) == (Exit.UNREACHABLE, False)
    assert err.startswith("echo2-coord: some-org/Small-1B cannot be fetched from http://127.0.0.1:1 (")
    assert err.count("\n") == 1
    assert said("init", tmp_path / "other", "--model", f"hf:some-org/Small-1B@{COMMIT}", *named[2:])[0] == 0
