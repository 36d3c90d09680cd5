"""Write the rows of docs/adr/README.md from the records themselves: `python -m tests.docs.adr_index`.

The page has a heading for each subject, and under it a table of records. People choose the subject of a record, by
writing a row that begins with its number; title, day and status come from the record. A record without a row goes
below the last table.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.paths import ROOT

RECORDS: Final = ROOT / "docs" / "adr"
PAGE: Final = RECORDS / "README.md"
_ROW: Final = re.compile(r"^\| (?:\[(\d+)\]\([^)]*\)|(\d+)) \|.*$", re.MULTILINE)


class Record(NamedTuple):
    """One decision. `status`: its first sentence after the day."""

    number: int
    file: str
    title: str
    day: str
    status: str

    def row(self) -> str:
        return f"| [{self.number}]({self.file}) | {self.title} | {self.day} | {self.status} |"


def record(path: Path) -> Record:
    """Read the head of a record. Raises ValueError where it is not `# N. Title`, then day and status."""
    head = re.match(r"# (\d+)\. (.+)\n\n(\d{4}-\d\d-\d\d)\. ((?:.+\n)+)", path.read_text())
    if head is None or int(head[1]) != int(path.name[:4]):
        raise ValueError(f"{path.name} does not begin with `# {int(path.name[:4])}. TITLE`, a day and its status")
    words = " ".join(head[4].split())
    status = re.match(r".+?[.;:](?= |$)", words)
    return Record(int(head[1]), path.name, head[2], head[3], (status[0] if status else words).rstrip(".;:"))


def records() -> dict[int, Record]:
    """Return every record by its number."""
    return {one.number: one for one in map(record, sorted(RECORDS.glob("[0-9]*.md")))}


def with_rows(page: str) -> str:
    """Return the page with each row as its record says, and a row for each record that has none."""
    every, seen = records(), set[int]()

    def row(match: re.Match[str]) -> str:
        number = int(match[1] or match[2])
        if number not in every or number in seen:
            raise ValueError(f"the index names ADR {number} twice, or there is none")
        seen.add(number)
        return every[number].row()

    text = _ROW.sub(row, page)
    return text.rstrip("\n") + "".join(f"\n{one.row()}" for one in every.values() if one.number not in seen) + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_rows(PAGE.read_text()))
