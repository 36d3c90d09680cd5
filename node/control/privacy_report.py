"""`echo2-node privacy show | forget`: what others see of this node, and how the page forgets it."""

from collections.abc import Mapping, Sequence
from typing import Any

from echo2.node.config import NodeConfig

STAYS = "what the ledger has stays: the key, its groups, their verdicts and points, and a team that was written there"


def lines(config: NodeConfig, status: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    """Return what is public of a running node, and what the operator sees. `status`, `seen`: the daemon's answers to
    the commands of these names, `seen` being that of `privacy`."""
    outbox = status["outbox"]
    public = [
        ("key", f"{status['node']}, in the ledger too"),
        ("name", f"{seen['name']} (setting name)"),
        ("team", f"{seen['team'] or 'none'} (setting team)"),
        ("device", f"{seen['device'] or 'not known yet'} (setting show_hardware)"),
        ("engine", status["engine"] or "not known yet"),
        ("work", f"{outbox.get('accepted', 0)} groups accepted, {outbox.get('refused', 0)} refused with reasons, "
                 f"{status['points']:g} points"),
        ("page", status["permalink"] or "the run names none"),
    ]  # fmt: skip
    operator = [
        ("address", f"the one from which it connects; peers reach it {seen['reached'] or 'not yet'}"),
        ("when", "times of its requests, and when it is connected"),
        ("build", seen["software"]),
    ]
    if config.uplink is not None:
        operator.append(("upload", f"its limit, {config.uplink:g} Mbit/s (setting uplink)"))
    return [
        "everybody sees, on the run's page:",
        *_rows(public),
        "the operator, and peers that this node exchanges data with, see too:",
        *_rows(operator),
        "nobody sees your files, other programs, or prompts that this node did not work on",
        "`echo2-node privacy forget` takes name, team and device off the page",
    ]


def forgotten(applied: bool) -> list[str]:
    """Return what became of `forget`. `applied`: whether a running node has told the run."""
    when = "the run is told now" if applied else "the run is told at the next start of the node"
    return [f"name, team and device are off the page ({when}); later nodes of this home show none", STAYS]


def _rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"  {name:<8}{text}" for name, text in rows]
