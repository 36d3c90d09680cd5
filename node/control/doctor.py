"""The command `echo2-node doctor`: it takes the settings, and returns lines of text and an exit code."""

import asyncio
import logging

import msgspec

from node.config import NodeConfig
from node.control import doctor_checks
from node.control.doctor_probes import examine
from node.errors import BadConfig, NodeError, TryLater
from node.home import joined, locked
from p2p.discovery.invite import Invite
from runtime.errors import LocalFault


def diagnose(config: NodeConfig, *, as_json: bool) -> tuple[list[str], int]:
    """Run every check; return (lines, exit code). Raises `BadConfig` for an invite that cannot be read, or a
    home that is not writable."""
    logging.getLogger("p2p").setLevel(logging.CRITICAL)  # p2p logs every address that does not answer
    running = config.home.exists() and _runs(config)
    rows = asyncio.run(examine(config, _invite(config), running=running))
    lines = [msgspec.json.encode(rows).decode()] if as_json else doctor_checks.table(rows)
    return lines, doctor_checks.exit_code(rows)


def _invite(config: NodeConfig) -> Invite | None:
    try:
        return joined(config.home) if config.invite is None else Invite.from_text(config.invite)
    except LocalFault as error:
        raise BadConfig(str(error)) from error
    except NodeError:
        return None


def _runs(config: NodeConfig) -> bool:
    """Tell whether a daemon of this home runs. A full disk, where the lock cannot be tried, counts as a running daemon.
    Raises `BadConfig`."""
    try:
        with locked(config.home):
            return False
    except TryLater:
        return True
