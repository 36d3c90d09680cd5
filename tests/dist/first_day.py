"""A volunteer's first day on one machine, from the installed wheel: `make first-day`, `python -m tests.dist.first_day`.

    operator   10.78.0.1   the coordinator of a run of the tiny model, and its page as https://run.example.org
    volunteer  10.78.0.2   an empty environment with the wheel; all of it belongs to the user nobody

Rules
1. The two are network namespaces, which root alone may make. The volunteer's machine trusts the page's certificate.
2. The volunteer does what docs/volunteer.md says. A service manager is played (tests/support/played_service.py): it
   runs the ExecStart that `service install` wrote. The game is a process of the name that `yield_to` has.
3. After each step it is checked what an owner would look at; the first check that fails ends the day with exit status
   1.
4. Sleep is SIGSTOP for all processes and the link down, for longer than a lease lives. A reboot is SIGKILL for all at
   once, and what they had in /dev/shm is gone.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from benchmarks.harness.bench import Claim, close
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.harness.lab import NotPermitted
from echo2.runtime.figures import number_of
from echo2.runtime.installation import NEWER_FILE
from tests.faults.hosts import Hosts
from tests.support.installations import Installation
from tests.support.paths import ROOT
from tests.support.played_service import PlayedService, booted, exec_start, stand_in_systemctl
from tests.support.terminals import Terminal

PAGE: Final = "run.example.org"
OPERATOR: Final = "10.78.0.1"
NOBODY: Final = 65534
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set", "-all")
LEASE_SECONDS: Final = 15
QUIET_SECONDS: Final = 5
PATIENCE: Final = 240.0
GAME: Final = "a-game"
NEWER: Final = "0.1.1"


class Step(NamedTuple):
    """A step of the day. `at`, `took`: seconds, the first since the day began. `seen`: what was checked, in words."""

    at: float
    name: str
    took: float
    seen: str


def until(what: str, condition: Callable[[], Any], seconds: float = PATIENCE) -> float:
    """Wait for a condition; return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.1)
    return time.monotonic() - began


class Operator:
    """The run, and the machine it is on."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._within, self.home, self._folder = hosts.within("operator"), folder / "run", folder
        self._programs: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str) -> str:
        """Run a command of echo2-coord; return what it prints."""
        done = self._run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = [*self._within, sys.executable, "-m", "echo2.coordinator.cli", *words]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def open(self) -> str:
        """Make the run, start it, and serve its page over TLS; return the run's fingerprint."""
        sets = {
            "run.description": "Shows a volunteer's first day.", "run.page": f"https://{PAGE}",
            "run.contact": "ann@example.org", "network.listen": f'["/ip4/{OPERATOR}/tcp/4310"]',
            "network.mdns": "false", "https.listen": f'["/ip4/{OPERATOR}/tcp/4311"]', "web.names": f'["{PAGE}"]',
            "leases.minimum_seconds": str(LEASE_SECONDS), "leases.maximum_seconds": str(LEASE_SECONDS),
        }  # fmt: skip
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        self.command("init", str(self.home), "--model", "tiny", "--name", "first-day", "--yes", *words)
        self._start("echo2.coordinator.cli", "run", "--home", str(self.home))
        certificate = self._folder / "page.crt", self._folder / "page.key"
        self._start("tests.support.tls_front", f"{OPERATOR}:443", "127.0.0.1:8420", *map(str, certificate))
        until("the coordinator answers", lambda: self._fingerprint() is not None)
        fingerprint = self._fingerprint()
        assert fingerprint is not None
        return fingerprint

    def report_of(self, peer: str) -> dict[str, Any]:
        """Return what the operator knows of a node."""
        return dict(json.loads(self.command("nodes", "show", peer, "--json", "--home", str(self.home))))

    def _fingerprint(self) -> str | None:
        asked = self._run("invite", "--home", str(self.home))
        assert self._programs[0].poll() is None, (self._folder / "operator.log").read_text()[-2000:]
        return asked.stderr.split()[-1] if asked.returncode == 0 else None

    def _start(self, module: str, *words: str) -> None:
        with (self._folder / "operator.log").open("ab") as log:
            argv = [*self._within, sys.executable, "-m", module, *words]
            self._programs.append(subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def close(self) -> None:
        """End the run."""
        for program in self._programs:
            program.terminate()
        for program in self._programs:
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()


class Volunteer:
    """The machine that is lent, with its owner."""

    def __init__(self, hosts: Hosts, folder: Path, certificate: Path) -> None:
        self.place = Installation(folder / "volunteer")
        stubs = folder / "stubs"
        stand_in_systemctl(stubs)
        self.env = self.place.environment({
            "PATH": f"{self.place.bin}:{stubs}:/usr/bin:/bin", "SSL_CERT_FILE": str(certificate), "LANG": "C.UTF-8",
        })  # fmt: skip
        self._root = hosts.within("volunteer")
        self.within = [*self._root, *AS_NOBODY]
        self.home = self.place.home / ".local/share/echo2/node"
        self.folder = folder

    def own(self) -> None:
        """Give all of it to its user."""
        for path in (self.place.folder, *self.place.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def argv(self, *words: str) -> list[str]:
        """Return a command of echo2-node on this machine."""
        return [*self.within, str(self.place.bin / "echo2-node"), *words]

    def node(self, *words: str, code: int = 0) -> str:
        """Run a command of echo2-node; return what it prints."""
        return self.run(self.argv(*words), code)

    def run(self, argv: list[str], code: int = 0) -> str:
        """Run a command; return what it prints. Its exit code is checked."""
        done = subprocess.run(
            argv, cwd=self.place.home, env=self.env, text=True, check=False, timeout=PATIENCE,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == code, f"{shlex.join(argv[-4:])} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def install_service(self) -> str:
        """Install the service, on a machine that systemd seems to have started."""
        return self.run([*self._root, *booted([*self.argv("service", "install")[len(self._root) :]])])

    def submissions(self) -> list[dict[str, Any]]:
        """Return all groups with their answers."""
        listed = self.node("receipts", "list", "--json", "--most", "1000000")
        return [json.loads(row) for row in listed.splitlines()]

    def receipts(self) -> dict[str, str]:
        """Return the state of each group by its lease."""
        return {row["lease"]: row["state"] for row in self.submissions()}

    def accepted(self) -> int:
        """Return how many groups were accepted so far."""
        return list(self.receipts().values()).count("accepted")


class Day:
    """The day: its steps in order. `scale`: 1; in a short day less, by which waits are shortened."""

    def __init__(self, hosts: Hosts, folder: Path, wheel: Path, scale: float) -> None:
        self._hosts, self._wheel, self._scale = hosts, wheel, scale
        certificate = _certificate(folder)
        self.operator, self.volunteer = Operator(hosts, folder), Volunteer(hosts, folder, certificate)
        self.steps: list[Step] = []
        self.claims: list[Claim] = []
        self.joined: list[tuple[float, str]] = []
        self._terminals: list[Terminal] = []
        self._service: PlayedService | None = None
        self._fingerprint = ""
        self._began = time.monotonic()

    def play(self) -> None:
        """Live it. Raises `AssertionError` at the first check that fails (rule 3)."""
        self._fingerprint = self.operator.open()
        print(f"the run is open: {self._fingerprint}\n", flush=True)
        self._began = time.monotonic()
        for step in (
            self.install, self.join, self.serve, self.watch, self.play_a_game, self.sleep, self.reboot, self.update,
            self.leave,
        ):  # fmt: skip
            began = time.monotonic()
            name, seen = step()
            row = Step(began - self._began, name, time.monotonic() - began, seen)
            self.steps.append(row)
            print(f"{_clock(row.at)}  {row.name:<46} {row.took:6.1f} s   {row.seen}", flush=True)

    def close(self) -> None:
        """End all that was started."""
        for terminal in self._terminals:
            terminal.kill()
        if self._service is not None:
            self._service.end()
        self.operator.close()

    @property
    def service(self) -> PlayedService:
        assert self._service is not None
        return self._service

    def install(self) -> tuple[str, str]:
        """Install the wheel in an empty environment."""
        place = self.volunteer.place
        subprocess.run([python_of_all(), "-m", "venv", str(place.venv)], check=True, env=place.environment())
        place.check("python", "-m", "pip", "install", "--quiet", str(self._wheel))
        self.volunteer.own()
        version = self.volunteer.node("version").strip()
        size = self.volunteer.place.size() / 1e6
        for words in (("name", "owl"), ("priority", "normal"), ("yield_to", GAME), ("quiet", str(QUIET_SECONDS))):
            self.volunteer.node("config", "set", *words)
        return "pip install of the wheel", f"{version}; {size:.0f} MB"

    def join(self) -> tuple[str, str]:
        """Join by the page, until the first accepted group; then Ctrl-C."""
        joined = self.volunteer.argv("join", f"https://{PAGE}")
        terminal = self._open(joined, str(self.volunteer.place.home))
        terminal.until(lambda text: "let it use this machine?" in text, 30)
        terminal.type("y\n")
        first = terminal.until(lambda text: "groups accepted" in text, PATIENCE)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end(PATIENCE) == 130, terminal.text()
        self.joined = [(at, text) for at, text in terminal.rows if at <= first and text.strip()]
        self.claims.append(Claim("first accepted group after join", first, "1 s", 30.0, at_most=True))
        assert f"joining first-day ({self._fingerprint})" in terminal.text().replace("\n", "")
        accepted = self.volunteer.accepted()
        assert accepted
        return f"echo2-node join https://{PAGE}; Ctrl-C", f"first group after {first:.1f} s; {accepted} accepted"

    def serve(self) -> tuple[str, str]:
        """Start with the machine from now on."""
        self.volunteer.install_service()
        unit = self.volunteer.place.home / ".config/systemd/user/echo2-node.service"
        env = {name: value for name, value in self.volunteer.env.items() if name in ("HOME", "LANG", "OMP_NUM_THREADS")}
        self._service = PlayedService(unit, self.volunteer.within, env, self.volunteer.folder)
        return "echo2-node service install", f"{self._start()}; ExecStart ends in {' '.join(exec_start(unit)[-4:-2])}"

    def watch(self) -> tuple[str, str]:
        """Watch the node in `top`, and look at what that costs."""
        terminal = self._open(self.volunteer.argv("top"), "/")
        top = psutil.Process(terminal.process.pid)
        time.sleep(5)
        before, began = sum(top.cpu_times()[:2]), time.monotonic()
        time.sleep(60 * self._scale)
        share = (sum(top.cpu_times()[:2]) - before) / (time.monotonic() - began)
        terminal.type("q")
        assert terminal.end(30) == 0, terminal.text()
        once = self.volunteer.node("top", "--once")
        assert "owl" in once, once
        self.claims.append(Claim("CPU of top", share, "a core", 0.01, at_most=True))
        return "echo2-node top", f"{100 * share:.2f} % of a core"

    def play_a_game(self) -> tuple[str, str]:
        """Play a game: the node gives way, and comes back."""
        game = self.volunteer.folder / GAME
        game.symlink_to("/bin/sleep")
        engines = [one for one in self.service.tree() if "engines.process.host" in " ".join(one.cmdline())]
        assert engines
        playing = subprocess.Popen([*self.volunteer.within, str(game), "3600"], env=self.volunteer.env)
        try:
            freed = until("the engine has ended", lambda: not any(map(_runs, engines)), 30)
            why = self.volunteer.node("why")
            assert GAME in why, why
            before = self.volunteer.accepted()
            time.sleep(30 * self._scale)
            assert not any("engines.process.host" in " ".join(one.cmdline()) for one in self.service.tree())
            assert self.volunteer.accepted() - before <= 8, "what was finished is still delivered, and no more"
        finally:
            playing.kill()
            playing.wait()
        back = self._works_again()
        self.claims.append(Claim("memory free after a game begins", freed, "1 s", 5.0, at_most=True))
        return "play a game (yield_to)", f"memory free after {freed:.1f} s; the next group {back:.0f} s after the game"

    def sleep(self) -> tuple[str, str]:
        """Sleep for longer than a lease, without a line."""
        before = self.volunteer.receipts()
        self.service.send(signal.SIGSTOP)
        self._hosts.cut("volunteer", 0)
        time.sleep(LEASE_SECONDS + 60 * self._scale)
        self._hosts.cut("volunteer", 0, back=True)
        self.service.send(signal.SIGCONT)
        back = self._works_again()
        self._keeps(before)
        late = [row for row in self.volunteer.submissions() if row["code"] == "late"]
        seen = f"the next group {back:.0f} s after waking; {number_of(len(late), 'group')} too late, no other lost"
        return "sleep for longer than a lease, line down", seen

    def reboot(self) -> tuple[str, str]:
        """Lose all processes at once, and the machine's memory; the service starts."""
        before, key = self.volunteer.receipts(), self.volunteer.node("keys", "show")
        self.service.kill()
        for left in Path("/dev/shm").glob(f"echo2-{NOBODY}-*"):
            shutil.rmtree(left)
        said = self._start()
        assert self.volunteer.node("keys", "show") == key
        self._keeps(before)
        return "lose power; the service starts", f"{said}; same key, nothing lost"

    def update(self) -> tuple[str, str]:
        """Install the next build as `update` says, and restart the service."""
        newer = newer_wheel(self.volunteer.folder / "newer")
        said = self.volunteer.node("update")
        (command,) = re.findall(r"(?m)^update +(.+)$", said)
        words = [str(newer) if word == NEWER_FILE else word for word in shlex.split(command)]
        assert str(newer) in words, said
        ended = self.service.stop()
        self.volunteer.run([*self.volunteer.within, *words])
        version = self.volunteer.node("version").strip()
        assert version.startswith(f"echo2 {NEWER}"), version
        before = self.volunteer.receipts()
        started = self._start()
        self._keeps(before)
        return "echo2-node update, and what it prints", f"ended in {ended:.1f} s; {version}; {started}"

    def leave(self) -> tuple[str, str]:
        """Leave the run, compare with the operator's ledger, and remove all."""
        peer = self.volunteer.node("keys", "show").split()[1]
        said = self.volunteer.node("leave")
        assert "of weights are deleted" in said, said
        assert self.service.wait(PATIENCE) == 0
        listed = self.volunteer.submissions()
        report = self.operator.report_of(peer)
        accepted = [row for row in listed if row["state"] == "accepted"]
        assert len(accepted) == report["key"]["accepted"], report
        verified = self.volunteer.node("receipts", "verify").strip()
        assert verified.startswith(f"{len(listed)} receipts right, 0 wrong"), verified
        late = [row for row in listed if row["code"] == "late"]  # what was under way as the machine fell asleep
        lost = len(listed) - len(accepted) - len(late)
        self.claims.append(Claim("groups lost", float(lost), "none", 0.0, at_most=True))
        self.volunteer.node("leave", "--forget", "--yes")
        assert not self.volunteer.home.exists() or not list(self.volunteer.home.iterdir())
        ends = {code: count for code, count in report["codes"].items() if code not in ("ok", "canary")}
        others = ", ".join(f"{count} {code}" for code, count in ends.items()) or "no lease ended otherwise"
        return "echo2-node leave; leave --forget", f"{len(accepted)} accepted, as the operator has it; {others}"

    def _open(self, argv: list[str], cwd: str) -> Terminal:
        """Start a program at a terminal; it ends with the day, however that ends."""
        self._terminals.append(Terminal(argv, self.volunteer.env, cwd))
        return self._terminals[-1]

    def _start(self) -> str:
        before = self.volunteer.accepted()
        began = time.monotonic()
        self.service.start(PATIENCE)
        until("a group is accepted", lambda: self.volunteer.accepted() > before)
        return f"the next group {time.monotonic() - began:.0f} s after its start"

    def _works_again(self) -> float:
        before = self.volunteer.accepted()
        return until("a group is accepted again", lambda: self.volunteer.accepted() > before)

    def _keeps(self, before: dict[str, str]) -> None:
        """Check that no group of before is lost, and none that had been accepted is any other way now."""
        now = self.volunteer.receipts()
        assert before.keys() <= now.keys()
        assert all(now[lease] == state for lease, state in before.items() if state == "accepted")


def python_of_all() -> str:
    """Return a Python that every user of this machine may run."""
    again = "subprocess.run([sys.executable, '-c', ''], check=True)"  # the first start is still one by root
    wanted = f"import subprocess, sys, venv; {again}; sys.exit(sys.version_info < (3, 11))"
    for python in (sys._base_executable, "/usr/bin/python3"):  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            if subprocess.run([*AS_NOBODY, python, "-c", wanted], capture_output=True, check=False).returncode == 0:
                return str(python)
    raise AssertionError("no Python of this machine can be run by the user nobody: install python3 and python3-venv")


def newer_wheel(folder: Path) -> Path:
    """Build the wheel of the next version, from the tracked files of this checkout."""
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # deleted, and not yet committed
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    shutil.copytree(ROOT / "echo2/_libp2p", source / "echo2/_libp2p")
    project = source / "pyproject.toml"
    text, count = re.subn(r'(?m)^version = ".*"$', f'version = "{NEWER}"', project.read_text())
    assert count == 1
    project.write_text(text)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheels")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel


def _certificate(folder: Path) -> Path:
    """Make the key and the certificate of the page, which is its own authority."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={PAGE}", "-addext",
         f"subjectAltName=DNS:{PAGE}", "-keyout", str(folder / "page.key"), "-out", str(folder / "page.crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "page.crt").chmod(0o644)
    return folder / "page.crt"


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:2d}:{int(seconds) % 60:02d}"


@contextlib.contextmanager
def named_page(hosts: Hosts) -> Iterator[None]:
    """Let the volunteer's machine know the address of the page's name."""
    place = Path("/etc/netns") / hosts.within("volunteer")[-1]
    place.mkdir(parents=True)
    (place / "hosts").write_text(f"127.0.0.1 localhost\n{OPERATOR} {PAGE}\n")
    try:
        yield
    finally:
        shutil.rmtree(place)


def page_of(day: Day, words: str) -> str:
    """Return the page of docs/results. `words`: the options of the command."""
    rows = [f"| {_clock(one.at)} | {one.name} | {one.took:.1f} s | {one.seen} |" for one in day.steps]
    phases = [f"{at:5.1f} s  {_plain(text, day.volunteer.place.home)}" for at, text in day.joined]
    claims = [f"| {one.name} | {one.ratio:.3g} | {one.bar:g} |" for one in day.claims]
    return "\n".join([
        "# A volunteer's first day", "",
        "One machine, two network namespaces, the installed wheel, and [lend a machine](../volunteer.md).",
        "Sleep is every process stopped and the line down, a reboot is SIGKILL for all and an empty `/dev/shm`.", "",
        figure_mark(f"make first-day{words}"), "",
        "| clock | step | took | seen |", "|---|---|---|---|", *rows, "",
        "| bar | measured | at most |", "|---|---|---|", *claims, "",
        "The lines of `join` until the first accepted group, with the seconds since the command:", "",
        "```", *phases, "```", "",
    ])  # fmt: skip


def _plain(text: str, home: Path) -> str:
    """Return a row of the terminal without colours and time, with ~ for the volunteer's home."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(str(home), "~")
    return re.sub(r"  +", "  ", re.sub(r"^\S+Z \[(\w+) *\] ", r"\1  ", text)).rstrip()


def main() -> int:
    """Live the day; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="wait a fifth as long in each step")
    parser.add_argument("--write", type=Path, help="write the page of docs/results to this file")
    options = parser.parse_args()
    wheels = list((ROOT / "dist").glob("*.whl"))
    if os.geteuid() != 0:
        print("the first day needs root, which makes network namespaces: run it as `sudo make first-day`")
        return 2
    if len(wheels) != 1:
        print(f"run `make dist` first: dist/ has {len(wheels)} wheels")
        return 2
    with tempfile.TemporaryDirectory(prefix="first-day-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            hosts = stack.enter_context(Hosts([("operator", "volunteer")]).up())
        except NotPermitted as refused:
            print(f"no network namespaces here: {refused}")
            return 2
        stack.enter_context(named_page(hosts))
        day = Day(hosts, folder, wheels[0], 0.2 if options.quick else 1.0)
        stack.callback(day.close)
        day.play()
    if options.write is not None:
        options.write.write_text(page_of(day, ""))
    print()
    return close(day.claims)


if __name__ == "__main__":
    sys.exit(main())
