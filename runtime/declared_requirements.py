"""Name the versions of installed libraries, and what one requires and this environment lacks: its installation was cut
short, or somebody removed a part.

Rules
1. The requirements of requirements count too. One with a marker is for some platforms or extras, and does not count.
2. A library without metadata requires nothing: it was not installed by an installer.
"""

import re
from collections.abc import Iterable
from importlib import metadata


def lacking(distributions: Iterable[str]) -> list[str]:
    """Return the names of missing distributions, sorted."""
    absent: set[str] = set()
    todo = [(name, True) for name in distributions]
    seen = {name for name, _ in todo}
    while todo:
        name, first = todo.pop()
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            absent |= set() if first else {name}
            continue
        for need in needs:
            required = re.split(r"[^\w.-]", need.strip())[0]
            if ";" not in need and required not in seen:
                seen.add(required)
                todo.append((required, False))
    return sorted(absent)


def version_of(distribution: str) -> str:
    """Return the version that is installed; empty: there is none, or its module has another name than it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
