"""Write the tables of docs/reference/settings.md from the settings themselves: `python -m tests.docs.settings_table`.

The first table has the settings that an operator should know (`FIRST_SETTINGS`), the second the expert settings. Both
say when a change counts: at once in a running coordinator, at its next start, or only in another run, as the setting is
signed. They go between the lines `<!-- coordinator settings -->` and `<!-- end of coordinator settings -->`.
"""

from typing import Final

from echo2.coordinator.settings.config import sections
from echo2.coordinator.settings.config_docs import is_first
from echo2.coordinator.settings.config_edits import LIVE_KEYS, SIGNED, text_of
from tests.support.paths import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "settings.md"
BEGIN, END = "<!-- coordinator settings -->", "<!-- end of coordinator settings -->"


def table() -> str:
    """Return the settings as two Markdown tables: key, default, when a change counts, explanation."""
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
    PAGE.write_text(with_table(PAGE.read_text()))
