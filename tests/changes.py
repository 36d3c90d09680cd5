"""Print the changes since the last release as the lists of a changelog: `make changes`."""

import sys
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

KINDS: Final = {
    "format": "Formats",
    "feature": "Added",
    "change": "Changed",
    "fix": "Fixed",
    "removal": "Removed",
}
"""Kind of a file -> heading, in the order of the changelog."""


def wrong(folder: Path) -> list[str]:
    """Return a sentence for each file that is not as changes/README.md asks."""
    faults = []
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        parts = path.name.split(".")
        if len(parts) != 3 or not parts[0] or parts[1] not in KINDS or parts[2] != "md":
            faults.append(f"{path.name}: the name should be NAME.KIND.md, with a KIND of {', '.join(KINDS)}")
        elif not path.read_text().strip() or path.read_text().lstrip().startswith(("-", "#", "*")):
            faults.append(f"{path.name}: the file should have sentences, without a hyphen or heading")
    return faults


def gathered(folder: Path) -> str:
    """Return the changes as Markdown."""
    parts = []
    for kind, heading in KINDS.items():
        items = [" ".join(path.read_text().split()) for path in sorted(folder.glob(f"*.{kind}.md"))]
        if items:
            parts.append(f"### {heading}\n\n" + "\n".join(f"- {item}" for item in items))
    return "\n\n".join(parts)


if __name__ == "__main__":
    faults = wrong(ROOT / "changes")
    print("\n".join(faults) if faults else gathered(ROOT / "changes") or "no changes since the last release")
    sys.exit(bool(faults))
