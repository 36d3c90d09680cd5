"""Install a daemon of ours with the service manager of this user.

Rules
1. A service has one home. Installed again for the same home it changes nothing, or says which lines it changed. Where
   its home is gone, it takes the new one and says so. A service of another home, and a file that is none of ours, stay
   as they are: the message names what to do.
2. Nothing is written before all is checked: the manager, the home, in which no daemon runs but the service's own, the
   file of variables, whose secrets nobody else may read.
3. A daemon that works is not interrupted: a changed service counts from its next start on.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.files import writing
from echo2.runtime.lock import OF_HOME, AlreadyLocked, lock_file
from echo2.runtime.service_unit import Service, changes, is_writable_name
from echo2.runtime.systemd_launchd import ServiceManager, ServiceState

_OF_THE_SHELL: Final = {"ECHO2_HOME", "ECHO2_COORD_HOME", "ECHO2_CONTAINER", "ECHO2_INVITE", "ECHO2_DEBUG"}
"""Variables of ours that a service needs not see."""


def install(manager: ServiceManager, service: Service, environ: Mapping[str, str]) -> list[str]:
    """Install a service and start it; return lines for its owner. `environ`: variables of the shell. Raises
    `LocalFault` (rules 1 and 2)."""
    _check(service)
    manager.check()
    path, after = manager.path(service.name), manager.text(service)
    before = _read(path)
    rows = _difference(manager, service, before, after)
    state = manager.state(service.name) if before is not None else ServiceState(False, "", False)
    if not state.begun:
        _check_free(service)
    if before != after:
        _write(path, after)
    try:
        manager.start(service.name)
    except LocalFault as error:
        raise LocalFault(f"{service.name} is installed and did not start ({error}): {manager.log_command(service.name)}"
                         " shows why") from error  # fmt: skip
    if state.runs and before != after:
        rows.append(f"the daemon that works keeps what it has until `{manager.restart_command(service.name)}`")
    unseen = sorted(name for name in environ if name.startswith("ECHO2_") and name not in _OF_THE_SHELL)
    if unseen:
        rows.append(f"the service does not see {', '.join(unseen)} of this shell: what it needs goes to "
                    f"{service.variables}, mode 600, as NAME='VALUE'")  # fmt: skip
    return [*rows, f"log: {manager.log_command(service.name)}", manager.presence()]


def uninstall(manager: ServiceManager, name: str, home: Path | None) -> list[str]:
    """Stop a service and remove it; return lines for its owner. `home`: the one that it must have; None: any. Raises
    `LocalFault`."""
    path = manager.path(name)
    text = _read(path)
    if text is None:
        return [f"{name} is not installed"]
    installed_for = _own_home(manager, path, text)
    if home is not None and not _are_same(home, installed_for):
        raise LocalFault(f"{name} is installed for {installed_for}, not for {home}: name that home, or another --name")
    manager.stop(name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise LocalFault(f"cannot remove {path}: {error.strerror}; it is stopped") from error
    manager.forget()
    return [f"{name} is stopped and removed; its home {installed_for} stays"]


def describe(manager: ServiceManager, program: str, name: str, home: Path | None) -> tuple[list[str], Exit]:
    """Return lines about a service, and an exit code: OK if its daemon is up. `home`: the one that it should have;
    None: any. Raises `LocalFault`."""
    path = manager.path(name)
    text = _read(path)
    if text is None:
        return [f"{name} is not installed: {program} service install"], Exit.UNREACHABLE
    installed_for = _own_home(manager, path, text)
    state = manager.state(name)
    rows = [f"service: {path}", f"home: {installed_for}", f"state: {state.described}", manager.presence()]
    other = "" if name == program else f" --name {name.removeprefix(f'{program}-')}"
    if not installed_for.is_dir():
        command = f"{program} service install{other} --home {shlex.quote(str(home or 'NEW_HOME'))}"
        return [*rows, f"its home {installed_for} is not there: if it has moved, {command}"], Exit.CONFIG
    if home is not None and not _are_same(home, installed_for):
        command = f"{program} service install --name WORD --home {shlex.quote(str(home))}"
        return [*rows, f"{home} is another home: {command}"], Exit.CONFIG
    if not state.runs:
        rows.append(f"its log says why: {manager.log_command(name)}")
    return rows, Exit.OK if state.runs else Exit.UNREACHABLE


def _check(service: Service) -> None:
    """Check what the service names (rule 2)."""
    if not is_writable_name([str(service.home), *service.command]):
        raise LocalFault(
            f"the path {str(service.home)!r} has a character that no service can name, or a space or backslash at its "
            "end: rename it"
        )
    if not os.access(service.home, os.W_OK | os.X_OK):
        raise LocalFault(f"cannot write to {service.home}: put its permissions right, or choose another --home")
    try:
        mode = service.variables.stat().st_mode
    except FileNotFoundError:
        return
    if mode & 0o077:
        command = f"chmod 600 {shlex.quote(str(service.variables))}"
        raise LocalFault(f"others can read {service.variables}, which may hold secrets: {command}")


def _check_free(service: Service) -> None:
    """Check that no daemon runs in the home. Raises `LocalFault`."""
    path = service.home / OF_HOME
    if not path.exists():
        return
    try:
        lock_file(path).release()
    except AlreadyLocked as error:
        raise LocalFault(
            f"an {service.description} runs in {service.home} (process {error.holder or 'unknown'}): end it first, as "
            "the service cannot run beside it"
        ) from error
    except OSError as error:
        raise LocalFault(f"cannot open {path}: {error.strerror}; put its permissions right") from error


def _difference(manager: ServiceManager, service: Service, before: str | None, after: str) -> list[str]:
    """Return what an installation changes, in lines. Raises `LocalFault` for a service that must stay (rule 1)."""
    path = manager.path(service.name)
    if before is None:
        return [f"{service.name} is installed: {path}"]
    if before == after:
        return [f"{service.name} was installed already, and is unchanged: {path}"]
    installed_for = _own_home(manager, path, before)
    moved = not _are_same(installed_for, service.home)
    if moved and installed_for.is_dir():
        raise LocalFault(
            f"{service.name} is installed for {installed_for}: give the one for {service.home} a --name of its own, or "
            f"first `{service.program} service uninstall`"
        )
    what = f"had the home {installed_for}, which is not there any more" if moved else "was installed already"
    return [f"{service.name} {what}; changed in {path}:", *changes(before, after)]


def _are_same(one: Path, other: Path) -> bool:
    """Tell whether two paths name the same folder, as a link and its target do."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def _own_home(manager: ServiceManager, path: Path, text: str) -> Path:
    home = manager.home_in(text)
    if home is None:
        raise LocalFault(f"{path} is none of ours: remove it, or choose another --name")
    return home


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise LocalFault(
            f"cannot read {path} ({getattr(error, 'strerror', None) or 'not UTF-8'}): remove it"
        ) from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise LocalFault(f"cannot write {path}: {error.strerror}; put the permissions of its folder right") from error
