"""`echo2-node config set ask`: what the owner is told before and after the ask is written.

Rules
1. An ask in another currency than the run's is refused before anything is written.
2. Before it is sent, the owner is told how it rises: by at most 25 % per epoch, from the ask that stands.
3. The running daemon takes it at once; without one, the next one that starts does.
"""

from pathlib import Path
from typing import Any

from echo2.node.control.owner_socket import ask_daemon
from echo2.node.errors import NoDaemonAnswers
from echo2.node.market.stored_market import JoinedRun, joined_run
from echo2.protocol.money_text import ask_text
from echo2.protocol.sealed_asks import parse_ask, steps_to


def check(home: Path, text: str | None) -> JoinedRun | None:
    """Check an ask against the run that was joined last, and return that run; None: none was. `text`: None: it is to be
    removed. Raises `BadAsk`, `NodeError`, `LocalFault`."""
    run = joined_run(home)
    if text is not None:
        parse_ask(text, None if run is None or not run.currency else run.currency)
    return run


def consequences(home: Path, run: JoinedRun | None, text: str | None) -> list[str]:
    """Tell the running daemon of an ask that was written; return sentences for the owner. `text`: None: it was
    removed. Raises `NodeError`."""
    taken = _taking_text(home, text)
    if run is None or run.spec is None:
        return [taken, "no run was joined here yet: a run that pays points needs no ask"]
    if not run.currency:
        return [f"{run.name} pays points and needs no ask: work goes on as before; {taken}"]
    if text is None:
        return [taken, "the ask that stands in the run stays in force until another one is opened"]
    return [taken, rises(parse_ask(text, run.currency), None if run.newest is None else run.newest.answer.ask)]


def rises(wanted: int, standing: int | None) -> str:
    """Return how an ask comes into force (rule 2)."""
    steps = steps_to(wanted, standing)
    if not steps:
        return f"the ask {ask_text(wanted)} stands already"
    if standing is None:
        return f"it is sealed for the next epoch, as {ask_text(wanted)}"
    after = f"the ask {ask_text(standing)} stands"
    if len(steps) == 1:
        return f"{after}; {ask_text(wanted)} is sealed for the next epoch"
    return (
        f"{after}, and an ask rises by at most 25 % per epoch: it reaches {ask_text(wanted)} in {len(steps)} epochs, "
        f"the next one at {ask_text(steps[0])}"
    )


def _taking_text(home: Path, text: str | None) -> str:
    asked: dict[str, Any] = {"command": "ask", "text": text}
    try:
        ask_daemon(home, **asked)
    except NoDaemonAnswers:
        return "no node runs here: it counts from the next start on"
    return "the running node has taken it"
