"""Shell commands that README.md shows, read from its text."""

import re
import shlex

from tests.support.paths import ROOT


def section(title: str) -> str:
    """Return the text of a section of README.md."""
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text())
    assert found, f"README.md has no section {title}"
    return found[1]


def blocks(title: str) -> list[str]:
    """Return the commands of a section's blocks of shell, one a line, without their comments."""
    lines = "".join(re.findall(r"(?ms)^```sh\n(.*?)^```", section(title))).splitlines()
    return [shlex.join(words) if "$" not in line else line for line in lines if (words := shlex.split(line, True))]


def in_text(title: str, *programs: str) -> list[str]:
    """Return the commands that stand between backticks in a section's text and begin with one of these words."""
    text = re.sub(r"(?ms)^```sh\n.*?^```", "", section(title))
    return [code for code in re.findall(r"`([^`]+)`", text) if code.split()[0] in programs]
