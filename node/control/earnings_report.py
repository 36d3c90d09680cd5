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
    lacks = _refresh_balances(config) if read(config).currency else []
    known = read(config)
    known.lacks.extend(lacks)
    if as_json:
        return [json.dumps(earnings.plain(known))]
    return earnings.lines(known, explain=explain)


def _refresh_balances(config: NodeConfig) -> list[str]:
    """Let the daemon ask the run for balances and payments; return what could not be learnt."""
    try:
        for command in ("market", "payee"):
            ask_daemon(config.home, command=command)
    except NoDaemonAnswers:
        return ["newer balances: no node runs here"]
    except TryLater as error:
        return [f"newer balances: {error}"]
    return []
