"""Send an operator's command to the coordinator of a run folder; coordinator/training/operator_socket.py answers it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.settings import config_edits
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.settings.named_home import with_home
from echo2.p2p.errors import Unreachable
from echo2.runtime import control_client
from echo2.runtime.control_client import NoAnswer, NoDaemon, NotYours, Rejected
from echo2.runtime.errors import LocalFault

_DEVICES: Final = {"learner.device", "learner.ranks", "scorer.devices"}
"""Settings that name devices of this machine."""


def command(home: Path, name: str, **facts: Any) -> dict[str, Any]:
    """Send one command and return its answer. Raises `Unreachable`, `LocalFault`."""
    try:
        return control_client.ask(home, command=name, **facts)
    except NoDaemon as error:
        start = with_home("echo2-coord run", home)
        raise Unreachable(f"no coordinator runs in {home}: start one with `{start}`") from error
    except NotYours as error:
        raise LocalFault(f"the coordinator in {home} belongs to another user: run the command as that user") from error
    except NoAnswer as error:
        raise Unreachable(f"the coordinator in {home} does not answer: look at its log") from error
    except Rejected as error:
        raise LocalFault(str(error)) from error


def change_settings(home: Path, assigned: Sequence[str], removed: Sequence[str]) -> list[str]:
    """Change settings by words "section.key=value" and removed keys, in the running coordinator if there is one; return
    what became of each. Two words without = are a key and its value, as `echo2-node config set` has them. A device that
    this machine lacks is refused. Raises `SettingsFault`, `LocalFault`, `Unreachable`, `DiskFull`."""
    if len(assigned) == 2 and not any("=" in word for word in assigned):
        assigned = ["=".join(assigned)]
    edit = config_edits.prepare(RunFolder(home).config, assigned, removed)
    if _DEVICES & set(edit.keys):
        _check_devices(edit.after)
    try:
        return list(command(home, "settings", assigned=list(assigned), removed=list(removed))["said"])
    except Unreachable as error:
        if not isinstance(error.__cause__, NoDaemon):
            raise
    edit.write()
    return edit.sentences()


def _check_devices(config: CoordinatorConfig) -> None:
    """Check that this machine has the devices. Raises `SettingsFault`."""
    from echo2.coordinator.run.admitted_classes import check_devices
    from echo2.coordinator.settings.computing import check_present

    check_devices(config.learner, config.scorer)
    check_present(config.learner, config.scorer)
