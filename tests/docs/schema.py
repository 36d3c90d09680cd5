"""Write docs/protocol/schema.json from the tables of its pages: `python -m tests.docs.schema`."""

import json
from pathlib import Path
from typing import Any, Final

from tests.support.documents import code, tables
from tests.support.paths import ROOT

PAGES: Final = ROOT / "docs" / "protocol"
FILE: Final = PAGES / "schema.json"
ABOUT: Final = (
    "The tables of these pages for programs, written by `python -m tests.docs.schema`: of each struct its page and its "
    "fields, as [name, type, what absence means]; of each kind of entry its key and its postings; of each kind of "
    "document its role and payload; of each method and each refusal code its row. Types are those of README.md."
)
_HEADS: Final = {"Kind": "documents", "Kind of entry": "entries", "Kind of market entry": "entries",
                 "Method": "methods", "Code": "refusals"}  # fmt: skip
_COLUMNS: Final = {"documents": ["Role", "Payload"], "entries": ["Key", "Postings"]}
"""What is taken of a table's columns; of the others all."""


def schema() -> dict[str, Any]:
    """Return the content of the file."""
    told: dict[str, Any] = {"about": ABOUT, "structs": {}, **{name: {} for name in dict.fromkeys(_HEADS.values())}}
    for page in sorted(PAGES.glob("*.md")):
        for header, *rows in tables(page.read_text()):
            if header[0].startswith("Field of "):
                fields = [[code(name), kind, code(absent)] for name, kind, absent, *_ in rows]
                told["structs"][code(header[0].removeprefix("Field of "))] = {"page": page.name, "fields": fields}
            elif (into := _HEADS.get(header[0])) and set(_COLUMNS.get(into, ())) <= set(header):
                wanted = _COLUMNS.get(into, header[1:])
                for row in rows:
                    cells = dict(zip(header[1:], row[1:], strict=False))
                    told[into][code(row[0])] = {name.lower(): code(cells[name]) for name in wanted}
    return told


def text() -> str:
    """Return the file's text, a row of each struct, kind, method and code."""

    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = [
        f" {written(name)}: " + (written(rows) if isinstance(rows, str) else "{\n" + ",\n".join(
            f"  {written(one)}: {written(row)}" for one, row in rows.items()) + "\n }")
        for name, rows in schema().items()
    ]  # fmt: skip
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(file: Path = FILE) -> None:
    """Write the file."""
    file.write_text(text())


if __name__ == "__main__":
    main()
