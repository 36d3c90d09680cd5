"""The log events of docs/reference/log-events.md against the code: names, levels and fields that programs may rely on.

1. Each event of the table `Event of the coordinator` is logged in coordinator/, each of `Event of a node` in node/, at
   the stated level and, wherever it is logged, with exactly the stated fields.
2. Each event that a benchmark, the demo, a fault test or a page of docs names is in the table.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.support.documents import SPAN, code, current_documents, section, tables
from tests.support.paths import ROOT
from tests.support.sources import Source, paths, source

LEVELS = ("debug", "info", "warning", "error")
TABLES = {"Event of the coordinator": "coordinator", "Event of a node": "node"}
READERS = ("benchmarks", "coordinator/demo", "tests/faults", "tests/second")


class LogEvent(NamedTuple):
    """One kind of log line. `package`: of the code that writes it."""

    package: str
    name: str
    level: str
    fields: frozenset[str]


def documented() -> list[LogEvent]:
    """Return the rows of the two tables."""
    text = section((ROOT / "docs/reference/log-events.md").read_text(), "Log events")
    return [
        LogEvent(TABLES[header[0]], code(row[0]), row[1], frozenset(re.findall(r"`(\w+)`", row[2])))
        for header, *rows in tables(text)
        for row in rows
    ]


def logged(module: Source, package: str) -> Iterator[LogEvent]:
    """Yield the events that a module logs under a literal name."""
    for node in module.nodes(ast.Call):
        match node:
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(name)), *_]) if level in LEVELS:
                yield LogEvent(package, name, level, frozenset(word.arg for word in node.keywords if word.arg))


@cache
def logged_by_daemons() -> list[LogEvent]:
    return [event for package in TABLES.values() for path in paths(package) for event in logged(source(path), package)]


@pytest.mark.parametrize("event", documented(), ids=lambda event: f"{event.package}: {event.name}")
def test_a_documented_event_is_logged_as_the_table_says(event: LogEvent) -> None:
    written = {one for one in logged_by_daemons() if (one.package, one.name) == (event.package, event.name)}
    assert written == {event}


def named_by_readers() -> dict[str, set[str]]:
    """Return text -> the places that name it: literals of the readers, code spans of the documents."""
    places: dict[str, set[str]] = {}
    for folder in READERS:
        for path in paths(folder):
            for text in source(path).texts:
                places.setdefault(text, set()).add(str(path.relative_to(ROOT)))
    for document in current_documents():
        for span in SPAN.findall(document.read_text()):
            places.setdefault(span, set()).add(str(document.relative_to(ROOT)))
    return places


def test_every_event_that_somebody_reads_by_name_is_in_the_table() -> None:
    # A single word, such as `plan`, is as likely the name of something else.
    names = {event.name for event in logged_by_daemons() if " " in event.name}
    readers = named_by_readers()
    read = {name: readers[name] for name in names & readers.keys()}
    assert {"head out", "group refused"} <= read.keys()
    known = {event.name for event in documented()}
    assert {name: places for name, places in read.items() if name not in known} == {}


def test_the_tables_are_found_and_name_each_event_once() -> None:
    events = documented()
    assert {event.package for event in events} == set(TABLES.values())
    assert len({(event.package, event.name) for event in events}) == len(events)


def test_the_scan_sees_name_level_and_fields() -> None:
    text = 'def f(log):\n    log.info("a thing happened", lease=1, code="x")\n    log.debug(name)\n'
    assert list(logged(Source(text), "node")) == [
        LogEvent("node", "a thing happened", "info", frozenset({"lease", "code"}))
    ]
