"""The texts by which a service manager runs a daemon of ours: a systemd user unit, a launchd agent. Pure.

Rules
1. A service names its home and nothing secret. Variables, the passphrase of a key among them, stand in a file of the
   home that its owner alone may read: `VARIABLES`. It may be missing.
2. The service ends for good with the exit codes after which only a person can help (runtime/exit_codes.py). After any
   other fault it starts again.
3. To stop, the daemon alone gets SIGTERM, and time to complete its work: its children work until then.
4. A child that the kernel ends for lack of memory does not end the daemon, which supervises it.
5. The unit has limits that a user's systemd can set without namespaces. Each leaves what our children need: namespaces
   of users, mounts, processes and networks, Landlock, devices, sockets of the internet, netlink and Unix. Engines give
   up new privileges themselves.
6. No priority: a node sets that of its engines, and idle I/O would delay a coordinator's fsyncs.

Source: systemd.service(5), systemd.exec(5), systemd.syntax(7), launchd.plist(5).
"""

import glob
import plistlib
import xml.parsers.expat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from echo2.runtime.exit_codes import Exit

VARIABLES: Final = "service.env"
START_SECONDS: Final = 900
"""Most seconds until a daemon is up: an environment of tasks may take minutes."""
RESTART_SECONDS: Final = 30
FINAL_EXITS: Final = (Exit.REFUSED, Exit.CONFIG, Exit.TRUST)
"""Exit codes after which nothing is started again (rule 2)."""
_HOME_KEY: Final = "\n[X-echo2]\nHome="
"""systemd ignores a section whose name begins with X-."""

_UNIT: Final = """\
# Written by `{program} service install`. Additions belong into `systemctl --user edit {name}`.
[Unit]
Description={description}
AssertPathIsDirectory={home}

[Service]
Type=notify
ExecStart={command}
EnvironmentFile=-{variables}
TimeoutStartSec={start}
Restart=on-failure
RestartSec={restart}
RestartPreventExitStatus={final}
KillMode=mixed
TimeoutStopSec={stop}
OOMPolicy=continue
{weight}UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=user mnt pid net
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

[Install]
WantedBy=default.target
"""

# launchd knows no such exit codes and no file of variables. $0: the file; the rest: the command. A signal may come
# before the shell knows the number of its child.
_SHELL: Final = """\
set -a; [ ! -f "$0" ] || . "$0"; set +a
pid= asked=
trap 'asked=yes; [ -z "$pid" ] || kill -TERM $pid' TERM INT
"$@" & pid=$!
[ -z "$asked" ] || kill -TERM $pid
while wait $pid; code=$?; kill -0 $pid 2>/dev/null; do :; done
case $code in {final}) exit 0;; esac
exit $code
"""


@dataclass(frozen=True)
class Service:
    """A daemon as a service. `program`: echo2-node or echo2-coord. `name`: name of the service. `command`: what it
    runs, with absolute paths. `stop_seconds`: most that it takes to end in order. `home`: absolute.
    `gives_way`: whether other programs come first (runtime/priority.py, rule 3)."""

    program: str
    name: str
    description: str
    command: tuple[str, ...]
    home: Path
    stop_seconds: int
    gives_way: bool = False

    @property
    def variables(self) -> Path:
        return self.home / VARIABLES


def unit_text(service: Service) -> str:
    """Return the service's systemd user unit."""
    filled = _UNIT.format(
        program=service.program,
        name=service.name,
        description=_verbatim(service.description),
        home=_verbatim(str(service.home)),
        command=" ".join([_quote_word(service.command[0]), *map(_argument, service.command[1:])]),
        variables=_verbatim(glob.escape(str(service.variables).replace("\\", "\\\\"))),
        start=START_SECONDS,
        restart=RESTART_SECONDS,
        final=" ".join(str(int(code)) for code in FINAL_EXITS),
        stop=service.stop_seconds,
        weight="CPUWeight=idle\nIOWeight=1\n" if service.gives_way else "",
    )
    return f"{filled}{_HOME_KEY}{service.home}\n"


def home_of_unit(text: str) -> Path | None:
    """Return the home that a unit of ours names; None: it is none of ours."""
    _, key, rest = text.partition(_HOME_KEY)
    return Path(rest.partition("\n")[0]) if key else None


def agent_text(service: Service, log: Path) -> str:
    """Return the service's launchd agent, a property list. `log`: the file of the daemon's log."""
    shell = _SHELL.format(final="|".join(str(int(code)) for code in FINAL_EXITS))
    facts = {
        "Label": service.name,
        "ProgramArguments": ["/bin/sh", "-c", shell, str(service.variables), *service.command],
        "WorkingDirectory": str(service.home),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ExitTimeOut": service.stop_seconds,
        "Umask": 0o077,
        "StandardErrorPath": str(log),
        "StandardOutPath": str(log),
    }
    if service.gives_way:
        facts |= {"ProcessType": "Background", "LowPriorityIO": True}
    return plistlib.dumps(facts).decode()


def home_of_agent(text: str) -> Path | None:
    """Return the home that an agent of ours names; None: it is none of ours."""
    try:
        facts = plistlib.loads(text.encode())
        return Path(facts["WorkingDirectory"]) if str(facts["ProgramArguments"][3]).endswith(VARIABLES) else None
    except (plistlib.InvalidFileException, xml.parsers.expat.ExpatError, ValueError, LookupError, TypeError):
        return None


def changes(before: str, after: str) -> list[str]:
    """Return the lines of `before` that `after` lacks, marked by "-", and those that it adds, marked by "+"."""
    old, new = before.splitlines(), after.splitlines()
    gone = [f"- {text_line}" for text_line in old if text_line not in new]
    return gone + [f"+ {text_line}" for text_line in new if text_line not in old]


def is_writable_name(words: Sequence[str]) -> bool:
    """Tell whether paths can stand in these texts: a control character cannot, and systemd takes a space or backslash
    at the end of a line for its own."""
    return all(word.isprintable() and not word.endswith((" ", "\\")) for word in words)


def _verbatim(value: str) -> str:
    """Return a value in which systemd expands nothing."""
    return value.replace("%", "%%")


def _argument(word: str) -> str:
    """Return an argument as systemd reads it: variables are expanded there, and not in a program's path."""
    return _quote_word(word.replace("$", "$$"))


def _quote_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_verbatim(escaped)}"'
