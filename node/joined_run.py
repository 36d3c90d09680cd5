"""What a node joins, told to its owner in a few sentences before the first work. Pure."""

from collections.abc import Sequence

from echo2.node.config import NodeConfig
from echo2.protocol.authority import RunSpec
from echo2.protocol.task_kinds import PURE_KIND, public_name
from echo2.runtime.printable import printable


def sentences(spec: RunSpec, config: NodeConfig, fingerprint: str, peer: str) -> list[str]:
    """Return what the run is, what it uses here, and what others see of this node, at most nine lines. `fingerprint`:
    the run's. `peer`: peer id of this node."""
    purpose = f": {printable(spec.description)}" if spec.description else ""
    pay = f"money, in {spec.currency}, at the price that you ask" if spec.currency else "points"
    return [
        f"joining {printable(spec.name)} ({fingerprint}){purpose}",
        *_row("run by", spec.contact),
        *_row("its page", page_address(spec)),
        f"the model {printable(spec.model)} learns {_tasks(spec)}, in groups of {spec.group_size} answers of at most "
        f"{spec.limit} tokens; accepted groups earn {pay}",
        f"it uses {_device(config)} of this machine, at most {config.disk:g} GB in {config.home}, "
        f"{_rate('upload', config.uplink)} and {_rate('download', config.downlink)}",
        f"everyone sees the name {config.name or peer[-8:]!r}{_team(config)}, the kind of device and what it made; the "
        "operator and the peers that it exchanges data with see its address",
        "Ctrl-C or `echo2-node finish` ends it, `echo2-node pause` frees the device, `echo2-node status` shows it",
    ]


def page_address(spec: RunSpec) -> str:
    """Return the address of the run's page; empty: none, or none of a web page."""
    return printable(spec.page) if spec.page.startswith(("https://", "http://")) else ""


def permalink(spec: RunSpec, peer: str) -> str:
    """Return the address of a node's own part of the run's page; empty: the run has no page. `peer`: its peer id."""
    page = page_address(spec)
    return f"{page.rstrip('/')}/nodes/{peer}" if page else ""


def _row(label: str, text: str) -> Sequence[str]:
    return [f"{label} {printable(text)}"] if text else []


def _tasks(spec: RunSpec) -> str:
    names = [
        f"{printable(public_name(task.name))}{'' if task.kind == PURE_KIND else ' (judged by the operator)'}"
        for task in spec.tasks
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _device(config: NodeConfig) -> str:
    return "the fastest device" if config.gpu == "auto" else f"the device {config.gpu}"


def _rate(what: str, limit: float | None) -> str:
    return f"{what} as fast as it goes" if limit is None else f"at most {limit:g} Mbit/s of {what}"


def _team(config: NodeConfig) -> str:
    return f", the team {config.team!r}" if config.team else ""
