"""Render the settings for people, from their definition in coordinator.settings.config.

    python -m echo2.coordinator.settings.config_docs docs/reference/settings.md     puts the tables into that document

Rules
1. The settings that an operator should know (`FIRST_SETTINGS`, at most 40) stand in a table of their own; all others
   are expert settings, whose defaults suit most runs.
2. coordinator.toml has the first settings, and of the expert settings those that differ from their defaults.
3. The tables say when a change counts: at once in a running coordinator, at its next start, or only in another run,
   as the setting is signed.
4. The tables go between the lines `<!-- coordinator settings -->` and `<!-- end of coordinator settings -->`.
"""

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from echo2.coordinator.settings.config import CoordinatorConfig, sections
from echo2.coordinator.settings.config_edits import LIVE_KEYS, SIGNED, text_of

FIRST_SETTINGS: Final[Mapping[str, str]] = {
    "run": "name model task kind steps staleness group_size batch_groups limit heldout evaluate_every "
    "compute_dtype engines",
    "learner": "device threads ranks learning_rate kl_coefficient objective microbatch_tokens compute_dtype",
    "network": "listen advertise uplink downlink mdns",
    "https": "listen advertise",
    "environment": "workers network",
    "web": "host port names",
    "leases": "maximum_seconds",
    "guard": "auto_rollback",
    "store": "budget_bytes",
    "payout": "rail currency",
    "market": "enabled budget",
}
"""The keys of each section that stand in the first table (rule 1)."""
BEGIN, END = "<!-- coordinator settings -->", "<!-- end of coordinator settings -->"


def toml(config: CoordinatorConfig) -> str:
    """Return coordinator.toml, with an explanation above each key (rule 2). Reading it gives `config` again."""
    parts = [
        "# Settings of this run. Every key may also come as a variable, ECHO2_COORD_<SECTION>_<KEY>.",
        "# Expert settings are left out where they have their defaults; docs/reference/settings.md lists them.", "",
    ]  # fmt: skip
    for name, model in sections():
        section = getattr(config, name)
        parts += [f"# {comment}" for comment in textwrap.wrap(model.__doc__ or "", 110)] + [f"[{name}]"]
        for key, field in model.model_fields.items():
            value = getattr(section, key)
            if not is_first(name, key) and value == field.default:
                continue
            parts += [f"# {comment}" for comment in textwrap.wrap(field.description or "", 110)]
            parts.append(f"# {key} =" if value is None else f"{key} = {text_of(value)}")
        parts.append("")
    return "\n".join(parts)


def is_first(section: str, key: str) -> bool:
    """Tell whether a setting stands in the first table (rule 1)."""
    return key in FIRST_SETTINGS.get(section, "").split()


def table() -> str:
    """Return the settings as two Markdown tables (rule 1): key, default, when a change counts, explanation."""
    head = ["| Coordinator key | Default | Changes | Meaning |", "|---|---|---|---|"]
    first, expert = list(head), list(head)
    for name, model in sections():
        for key, field in model.model_fields.items():
            default = "unset" if field.default is None else f"`{text_of(field.default)}`"
            whole = f"{name}.{key}"
            when = "in another run" if whole in SIGNED else "at once" if whole in LIVE_KEYS else "next start"
            row = f"| `{whole}` | {default} | {when} | {(field.description or '').replace('|', chr(92) + '|')} |"
            (first if is_first(name, key) else expert).append(row)
    return "\n".join([*first, "", "## Expert settings", "", "Their defaults suit most runs.", "", *expert])


def with_table(document: str) -> str:
    """Return `document` with the present tables between the marking lines. Raises ValueError if those are missing."""
    return replace_between(document, BEGIN, END, table())


def replace_between(document: str, first: str, last: str, text: str) -> str:
    """Return `document` with this text between two lines of it. Raises ValueError if those are missing."""
    before, begin, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the document lacks the lines {first} and {last}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_table(target.read_text()))
