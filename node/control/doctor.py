"""The command `echo2-node doctor`: it takes the settings, and returns lines of text and an exit code."""

import asyncio
import logging

import msgspec

from echo2.node.config import NodeConfig
from echo2.node.control import doctor_checks
from echo2.node.control.doctor_probes import examine
from echo2.node.errors import AlreadyRuns, BadConfig, NodeError
from echo2.node.home import check_place, invite_of_joined_run, lock_home
from echo2.node.links.invite_page import fetch_invite, page_of
from echo2.p2p.discovery.invite import Invite
from echo2.runtime.errors import LocalFault


def diagnose(config: NodeConfig, *, as_json: bool) -> tuple[list[str], int]:
    """Run every check; return (lines, exit code). Raises `BadConfig` for an invite that cannot be read."""
    logging.getLogger("p2p").setLevel(logging.CRITICAL)  # p2p logs every address that does not answer
    running, trouble = _lock_state(config)
    rows = asyncio.run(examine(config, _invite(config), running=running))
    if trouble is not None:
        rows.insert(0, doctor_checks.unwritable(str(config.home), trouble, trouble.exit))
    lines = [msgspec.json.encode(rows).decode()] if as_json else doctor_checks.table(rows)
    return lines, doctor_checks.exit_code(rows)


def _invite(config: NodeConfig) -> Invite | None:
    try:
        if config.invite is None:
            return invite_of_joined_run(config.home)
        page = page_of(config.invite)
        return asyncio.run(fetch_invite(page)).invite if page is not None else Invite.from_text(config.invite)
    except LocalFault as error:
        raise BadConfig(str(error)) from error
    except NodeError:
        return None


def _lock_state(config: NodeConfig) -> tuple[bool, NodeError | None]:
    """Try the lock of the home, if there is one. Return whether a daemon holds it, and why it cannot be tried: a full
    disk, or a home that is not writable or cannot be made."""
    try:
        if config.home.exists():
            with lock_home(config.home):
                return False, None
        check_place(config.home)
        return False, None
    except AlreadyRuns:
        return True, None
    except NodeError as error:
        return False, error
