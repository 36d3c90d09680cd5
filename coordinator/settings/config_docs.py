"""Write coordinator.toml for people, from the definition of the settings in coordinator.settings.config.

Rules
1. The settings that an operator should know (`FIRST_SETTINGS`, at most 40) stand in a table of their own in
   docs/reference/settings.md; all others are expert settings, whose defaults suit most runs.
2. coordinator.toml has the first settings, and of the expert settings those that differ from their defaults.
"""

import textwrap
from collections.abc import Mapping
from typing import Final

from echo2.coordinator.settings.config import CoordinatorConfig, sections
from echo2.runtime.settings_file import text_of

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
"""Keys of each section that stand in the first table (rule 1)."""


def toml(config: CoordinatorConfig) -> str:
    """Return coordinator.toml, with an explanation above each key (rule 2). Reading it gives `config` again."""
    parts = [
        "# Settings of this run. Every key may also come as a variable, ECHO2_COORD_<SECTION>_<KEY>.",
        "# Expert settings are left out where they have their defaults; docs/reference/settings.md lists them.", "",
    ]  # fmt: skip
    for name, model in sections():
        section = getattr(config, name)
        parts += [f"# {comment}" for comment in textwrap.wrap(" ".join((model.__doc__ or "").split()), 110)] + [
            f"[{name}]"
        ]
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
