"""`echo2-node earnings`: with the running daemon's newest answers, or from the disk alone."""

import json

from echo2.node.config import NodeConfig
from echo2.node.control.owner_socket import ask_daemon
from echo2.node.errors import NoDaemonAnswers, TryLater
from echo2.node.market import earnings
from echo2.node.market.earnings_sources import read


def report(config: NodeConfig, *, explain: bool, as_json: bool) -> list[str]:
    """Return the report. The running daemon asks the run first; what it cannot learn is said. Raises `NodeError`,
    `LocalFault`."""
    lacks, rank = _ask_run(config, market=bool(read(config).currency))
    known = read(config)._replace(rank=rank)
    known.lacks.extend(lacks)
    if as_json:
        return [json.dumps(earnings.plain(known))]
    return earnings.lines(known, explain=explain)


def _ask_run(config: NodeConfig, *, market: bool) -> tuple[list[str], str]:
    """Let the daemon ask the run for its balances and payments, where it pays money, and return what could not be
    learnt, and the node's rank."""
    what = "newer balances" if market else "rank"
    try:
        for command in ("market", "payee") if market else ():
            ask_daemon(config.home, command=command)
        return [], str(ask_daemon(config.home, command="status").get("rank") or "")
    except NoDaemonAnswers:
        return [f"{what}: no node runs here"], ""
    except TryLater as error:
        return [f"{what}: {error}"], ""
