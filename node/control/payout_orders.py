"""`echo2-node payout set | show`: through the running daemon, or for the next one.

Rules
1. A bad account is refused before anything is stored or sent.
2. Without a daemon the account waits in the file, and the next daemon tells the run; `show` says what was last known.
"""

from pathlib import Path
from typing import Any

from echo2.node.control.owner_socket import ask_daemon
from echo2.node.errors import BadConfig, NoDaemonAnswers
from echo2.node.market import payee_file
from echo2.node.market.payee_keeper import check
from echo2.node.market.stored_market import JoinedRun, joined_run


def name(home: Path, account: str) -> list[str]:
    """Name the account that the node's pay goes to; return sentences for the owner. Raises `NodeError`,
    `LocalFault`."""
    check(account)
    run = _paying(home)
    try:
        return _ask_daemon(home, account)
    except NoDaemonAnswers:
        record = payee_file.read(run.folder).wants(account)
        payee_file.write(run.folder, record)
        return ["no node runs here: the next one that starts tells the run", *record.lines()]


def describe_payee(home: Path) -> list[str]:
    """Return what is in force, for the owner. Raises `NodeError`, `LocalFault`."""
    run = _paying(home)
    try:
        return _ask_daemon(home, None)
    except NoDaemonAnswers:
        return ["no node runs here: as the run last told it", *payee_file.read(run.folder).lines()]


def _ask_daemon(home: Path, account: str | None) -> list[str]:
    asked: dict[str, Any] = {"command": "payee", "account": account}
    answer = ask_daemon(home, **asked)
    return [str(sentence) for sentence in answer["payee"]]


def _paying(home: Path) -> JoinedRun:
    """Return the run that was joined last. Raises `BadConfig` if there is none, or it pays points."""
    run = joined_run(home)
    if run is None:
        raise BadConfig(f"no run was joined in {home}: give an invite with echo2-node join INVITE")
    if run.spec is not None and not run.currency:
        raise BadConfig(f"{run.name} pays points, which are credited at the verdict: it needs no account")
    return run
