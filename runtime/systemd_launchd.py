"""The service managers under which a user's daemons run: the user's systemd on Linux, launchd on macOS.

Source: systemctl(1), loginctl(1), sd_booted(3), launchctl(1).
"""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.service_unit import Service, agent_text, home_of_agent, home_of_unit, unit_text

_LINGERING_FOLDER: Final = Path("/var/lib/systemd/linger")
_SYSTEMD_FOLDER: Final = Path("/run/systemd/system")
"""Exists where systemd is the first process."""
_ANSWER_SECONDS: Final = 60.0
"""Seconds for an answer of the service manager; a start may take as long as the unit says."""
_EXITED_CODE: Final = "1"
"""ExecMainCode of a process that ended by itself: CLD_EXITED of siginfo_t."""
_NO_BUS: Final = (
    "log in as this user, not by su or sudo, or `sudo loginctl enable-linger USER`, "
    "then `export XDG_RUNTIME_DIR=/run/user/$(id -u)`"
)
_NO_SCREEN: Final = "log in at the machine's screen first"


class ServiceState(NamedTuple):
    """State of a service, as its manager reports it. `runs`: whether its daemon is up. `described`: state in words.
    `begun`: whether it has a daemon, be it one that still starts or that ends."""

    runs: bool
    described: str
    begun: bool


class ServiceManager(Protocol):
    def path(self, name: str) -> Path:
        """Return the file that describes a service."""

    def text(self, service: Service) -> str:
        """Return the content of a service's file."""

    def home_in(self, text: str) -> Path | None:
        """Return the home that a file names; None: it is none of ours."""

    def check(self) -> None:
        """Check that the manager answers, and reads the files that `path` names. Raises `LocalFault`."""

    def start(self, name: str) -> None:
        """Take in the service's file, let it start with the machine or at log-in, and start it. Raises `LocalFault`."""

    def stop(self, name: str) -> None:
        """Stop the service, and start it no more. Raises `LocalFault`."""

    def forget(self) -> None:
        """Take in that a file is gone. Raises `LocalFault`."""

    def state(self, name: str) -> ServiceState:
        """Return the state of a service. Raises `LocalFault`."""

    def restart_command(self, name: str) -> str:
        """Return the shell command that restarts a service."""

    def log_command(self, name: str) -> str:
        """Return the shell command that shows the newest lines of the daemon's log."""

    def presence(self) -> str:
        """Return when the service runs, with the command that changes it."""


class SystemdOfUser:
    def path(self, name: str) -> Path:
        configured = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        return Path(configured).expanduser() / "systemd" / "user" / f"{name}.service"

    def text(self, service: Service) -> str:
        return unit_text(service)

    def home_in(self, text: str) -> Path | None:
        return home_of_unit(text)

    def check(self) -> None:
        read = self._systemctl("show", "--property=UnitPath", "--value")
        folder = str(self.path("any").parent)
        if os.environ.get("XDG_CONFIG_HOME") and not _lists(read, folder):
            raise LocalFault(
                f"the systemd of this user reads no services from {folder}, where XDG_CONFIG_HOME of this shell has "
                "them: `unset XDG_CONFIG_HOME`, or set it for all logins and log in again"
            )

    def start(self, name: str) -> None:
        self._systemctl("daemon-reload")
        self._systemctl("enable", f"{name}.service")
        print(f"{name} starts", file=sys.stderr)
        self._systemctl("start", f"{name}.service", patience=None)

    def stop(self, name: str) -> None:
        self._systemctl("disable", "--now", f"{name}.service", patience=None)

    def forget(self) -> None:
        self._systemctl("daemon-reload")

    def state(self, name: str) -> ServiceState:
        wanted = "ActiveState,SubState,ExecMainCode,ExecMainStatus,NRestarts,StatusText,UnitFileState"
        answer = self._systemctl("show", f"{name}.service", f"--property={wanted}")
        facts = dict(row.partition("=")[::2] for row in answer.splitlines())
        runs = facts.get("ActiveState") == "active"
        parts = [f"{facts.get('ActiveState')} ({facts.get('SubState')})"]
        if (code := facts.get("ExecMainStatus", "0")) != "0":
            signal = facts.get("ExecMainCode", _EXITED_CODE) != _EXITED_CODE
            parts.append(f"last ended by signal {code}" if signal else f"last ended with {_code_in_words(code)}")
        if (restarts := facts.get("NRestarts", "0")) != "0":
            parts.append(f"{restarts} restarts")
        if facts.get("UnitFileState") != "enabled":
            parts.append("not enabled")
        status = f": {facts['StatusText']}" if runs and facts.get("StatusText") else ""
        begun = facts.get("ActiveState") not in ("inactive", "failed") and facts.get("SubState") != "auto-restart"
        return ServiceState(runs, ", ".join(parts) + status, begun)

    def restart_command(self, name: str) -> str:
        return f"systemctl --user restart {name}"

    def log_command(self, name: str) -> str:
        return f"journalctl --user -u {name} -n 30"

    def presence(self) -> str:
        user = pwd.getpwuid(os.getuid()).pw_name
        if (_LINGERING_FOLDER / user).exists():
            return "it starts with the machine"
        return (
            f"it starts as you log in and ends as you log out; to have it run from the start of the machine on: "
            f"sudo loginctl enable-linger {user}"
        )

    def _systemctl(self, *words: str, patience: float | None = _ANSWER_SECONDS) -> str:
        return _answer(["systemctl", "--user", *words], "the systemd of this user", patience, _NO_BUS)


class LaunchdOfUser:
    """The launchd of a user who is logged in on macOS."""

    def path(self, name: str) -> Path:
        return Path("~/Library/LaunchAgents").expanduser() / f"{name}.plist"

    def text(self, service: Service) -> str:
        return agent_text(service, self._log(service.name))

    def home_in(self, text: str) -> Path | None:
        return home_of_agent(text)

    def check(self) -> None:
        self._launchctl("print", self._domain)

    def start(self, name: str) -> None:
        self._log(name).parent.mkdir(parents=True, exist_ok=True)
        self._launchctl("enable", f"{self._domain}/{name}")
        if self._is_loaded(name):
            self._launchctl("kickstart", f"{self._domain}/{name}")
        else:
            self._launchctl("bootstrap", self._domain, str(self.path(name)))

    def stop(self, name: str) -> None:
        if self._is_loaded(name):
            self._launchctl("bootout", f"{self._domain}/{name}", patience=None)

    def forget(self) -> None:
        """launchd has forgotten a service as it stopped it."""

    def state(self, name: str) -> ServiceState:
        if not self._is_loaded(name):
            return ServiceState(False, "not loaded", False)
        answer = self._launchctl("print", f"{self._domain}/{name}")
        facts = dict(row.strip().partition(" = ")[::2] for row in answer.splitlines() if " = " in row)
        ended = facts.get("last exit code", "")
        number = ended.partition(":")[0]
        described = facts.get("state", "not known")
        if number.isdecimal() and number != "0":
            described += f", last ended with {_code_in_words(number)}"
        runs = facts.get("state") == "running"
        return ServiceState(runs, described, runs)

    def restart_command(self, name: str) -> str:
        path = shlex.quote(str(self.path(name)))
        return f"launchctl bootout {self._domain}/{name} && launchctl bootstrap {self._domain} {path}"

    def log_command(self, name: str) -> str:
        return f"tail -n 30 {shlex.quote(str(self._log(name)))}"

    def presence(self) -> str:
        return "it runs while you are logged in"

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    def _log(self, name: str) -> Path:
        return Path("~/Library/Logs").expanduser() / f"{name}.log"

    def _is_loaded(self, name: str) -> bool:
        try:
            self._launchctl("print", f"{self._domain}/{name}")
        except LocalFault:
            return False
        return True

    def _launchctl(self, *words: str, patience: float | None = _ANSWER_SECONDS) -> str:
        return _answer(["launchctl", *words], "launchd", patience, _NO_SCREEN)


def manager_here(program: str, platform: str = sys.platform, booted: Path = _SYSTEMD_FOLDER) -> ServiceManager:
    """Return the service manager of this user. Raises `LocalFault` where there is none."""
    if platform == "darwin" and shutil.which("launchctl"):
        return LaunchdOfUser()
    if platform.startswith("linux") and booted.is_dir() and shutil.which("systemctl"):
        return SystemdOfUser()
    raise LocalFault(
        f"neither systemd nor launchd runs here: add `{program} run --home HOME` to the programs that this machine "
        "starts by other means, or use the container (docs/install.md)"
    )


def _answer(command: list[str], who: str, patience: float | None, remedy: str) -> str:
    """Run a command of the service manager, and return what it prints. Raises `LocalFault`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalFault(f"{who} does not answer ({error}): {remedy}") from error
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    if "bus" in said or "Domain does not support" in said:
        raise LocalFault(f"{who} does not answer ({said}): {remedy}")
    raise LocalFault(f"`{' '.join(command)}`: {said}")


def _lists(folders: str, wanted: str) -> bool:
    """Tell whether a property of systemd, folders with spaces between, names a folder. Releases differ in whether they
    quote one that has spaces itself."""
    if f" {wanted} " in f" {folders.strip()} ":
        return True
    try:
        words = shlex.split(folders)
    except ValueError:
        return False
    return os.path.realpath(wanted) in map(os.path.realpath, words)


def _code_in_words(code: str) -> str:
    try:
        return f"{code} ({Exit(int(code)).name})"
    except ValueError:
        return code
