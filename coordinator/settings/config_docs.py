"""Render the settings for people, from their definition in coordinator.settings.config.

    python -m echo2.coordinator.settings.config_docs docs/operations.md     puts the table of settings into that
    document

The table goes between the lines `<!-- coordinator settings -->` and `<!-- end of coordinator settings -->`.
"""

import sys
import textwrap
from pathlib import Path
from typing import Any

import tomlkit

from echo2.coordinator.settings.config import CoordinatorConfig, sections

BEGIN, END = "<!-- coordinator settings -->", "<!-- end of coordinator settings -->"


def toml(config: CoordinatorConfig) -> str:
    """Return coordinator.toml with every key and its explanation above it. Reading it gives `config` again."""
    parts = ["# Settings of this run. Every key may also come as a variable, ECHO2_COORD_<SECTION>_<KEY>.", ""]
    for name, model in sections():
        section = getattr(config, name)
        parts += [f"# {comment}" for comment in textwrap.wrap(model.__doc__ or "", 110)] + [f"[{name}]"]
        for key, field in model.model_fields.items():
            parts += [f"# {comment}" for comment in textwrap.wrap(field.description or "", 110)]
            value = getattr(section, key)
            parts.append(f"# {key} =" if value is None else f"{key} = {_written(value)}")
        parts.append("")
    return "\n".join(parts)


def table() -> str:
    """Return the settings as a Markdown table: key, default, explanation."""
    rows = ["| Coordinator key | Default | Meaning |", "|---|---|---|"]
    for name, model in sections():
        for key, field in model.model_fields.items():
            default = "unset" if field.default is None else f"`{_written(field.default)}`"
            rows.append(f"| `{name}.{key}` | {default} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def with_table(document: str) -> str:
    """Return `document` with the present table between the two marking lines. Raises ValueError if they are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table()}\n\n{end}{after}"


def _written(value: Any) -> str:
    written: str = tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()
    return written


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_table(target.read_text()))
