"""Report keys and their standing: `echo2-coord nodes ls` and `nodes show`.

The report reads run.sqlite, also while a coordinator runs, and shows the state of the last commit.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.strikes import STRIKE_WINDOW_GROUPS
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.operator_remarks import key_of
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import KEY_ROTATED_KIND, KeyAccount, KeyRotated, Remark, Suspended
from echo2.ledger.standing import Rank, Standing, at, describe, until
from echo2.p2p.identity import peer_id
from echo2.runtime.figures import number_of
from echo2.runtime.printable import printable
from echo2.runtime.units import DAY, minute

SHOWN_LEASES: Final = 20
"""The number of last leases, and of last entries, that are shown of a key."""
Out = Literal["suspended", "banned"]
_COLUMNS: Final = ", ".join(f"a.{column}" for column in KeyAccount._fields)
_ALL_KEYS_QUERY: Final = f"""
SELECT n.key, n.name, n.last_seen, {_COLUMNS} FROM nodes n LEFT JOIN accounts a ON a.node = n.key
UNION ALL SELECT a.node, '', 0, {_COLUMNS} FROM accounts a WHERE a.node NOT IN (SELECT key FROM nodes)
ORDER BY 3 DESC, 1
"""


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key in a list. `name`: chosen by the node. `last_seen`: ms, 0: never. `suspended_until`: ms, None: the key
    is served."""

    node: str
    name: str
    rank: Rank
    standing: str
    suspended_until: int | None
    accepted: int
    groups: int
    last_seen: int


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """A refused submission that counts against its key. `evidence`: the submission's BLAKE3, hex. `at`: ms."""

    at: int
    code: str
    evidence: str


class ListedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease with its end, or its present state. `at`: time of the verdict, or when the lease was sent, ms. `code`:
    "ok", a refusal code, "expired", "returned", "open" or "received"."""

    at: int
    lease: str
    code: str


class QuarantinedDay(msgspec.Struct, frozen=True, kw_only=True):
    """A key's groups in quarantine of one day. `weight`: milli-RE. `until`: when the day ends, ms."""

    groups: int
    weight: int
    until: int


class KeyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of one key.

    `codes`: its decided groups and other ends of leases, counted by reason. `quarantined`: its groups in quarantine by
    day, oldest first. `last`: its last leases, newest first. `entries`: its last suspensions and remarks of the
    operator, in words, newest first."""

    key: KeyRow
    vouched: bool
    codes: dict[str, int]
    quarantined: list[QuarantinedDay]
    last: list[ListedLease]
    strikes: list[Strike]
    entries: list[str]


def list_keys(
    path: Path, now: int, most: int, page: int = 1, rank: Rank | None = None, out: Out | None = None
) -> list[KeyRow]:
    """Return page `page` of the keys, `most` per page, in the order of their last contact, newest first. `rank`, `out`:
    only such keys. Raises `DatabaseFault`."""
    with Database.read(path) as database, closing(database.each(_ALL_KEYS_QUERY)) as rows:
        chosen = (row for row in _rows(rows, now) if _is_wanted(row, rank, out))
        return list(islice(chosen, (page - 1) * most, page * most))


def _rows(rows: Iterator[tuple[Any, ...]], now: int) -> Iterator[KeyRow]:
    for key, name, last_seen, *columns in rows:
        account = KeyAccount() if columns[0] is None else KeyAccount(*columns)
        yield _row(key, name, last_seen, account, at(account, now))


def _row(key: bytes, name: str, last_seen: int, account: KeyAccount, standing: Standing) -> KeyRow:
    return KeyRow(
        node=peer_id(key),
        name=name,
        rank=standing.rank,
        standing=describe(standing),
        suspended_until=standing.suspended_until,
        accepted=account.accepted,
        groups=account.groups,
        last_seen=last_seen,
    )


def _is_wanted(row: KeyRow, rank: Rank | None, out: Out | None) -> bool:
    if rank is not None and row.rank != rank:
        return False
    return out is None or (row.suspended_until is not None and (out == "banned") == (", banned" in row.standing))


def describe_key(path: Path, peer: str, now: int) -> KeyReport:
    """Return the report on one key. `peer`: its peer id. Raises `LocalFault`, `DatabaseFault`."""
    key = key_of(peer)
    with Database.read(path) as database, database.reading():
        accounts = Accounts(database, Ledger(database))
        account = accounts.account(key)
        name, last_seen = database.one("SELECT name, last_seen FROM nodes WHERE key = ?", (key,)) or ("", 0)
        return KeyReport(
            key=_row(key, name, last_seen, account, at(account, now)),
            vouched=account.vouched,
            codes=dict(database.all("SELECT code, groups FROM sums WHERE node = ? ORDER BY groups DESC, code", (key,))),
            quarantined=_quarantined_days(database, key),
            last=_last(database, key),
            strikes=_strikes(database, key, account.groups),
            entries=[_format_event(entry) for entry in reversed(accounts.entries(key)[-SHOWN_LEASES:])],
        )


def _quarantined_days(database: Database, key: bytes) -> list[QuarantinedDay]:
    query = "SELECT count(*), sum(weight), day FROM quarantine WHERE node = ? GROUP BY day ORDER BY day"
    return [
        QuarantinedDay(groups=groups, weight=weight, until=(day + 1) * DAY)
        for groups, weight, day in database.all(query, (key,))
    ]


def _last(database: Database, key: bytes) -> list[ListedLease]:
    rows = database.all(
        "SELECT coalesce(v.at, l.sent), lower(hex(l.id)), coalesce(v.code, l.state) FROM leases l"
        " LEFT JOIN verdicts v ON v.lease = l.id WHERE l.node = ? ORDER BY l.sent DESC, l.id LIMIT ?",
        (key, SHOWN_LEASES),
    )
    return [ListedLease(at=when, lease=lease, code=code) for when, lease, code in rows]


def _strikes(database: Database, key: bytes, groups: int) -> list[Strike]:
    query = "SELECT at, code, lower(hex(evidence)) FROM strikes WHERE node = ? AND number > ? ORDER BY id DESC"
    return [
        Strike(at=when, code=code, evidence=digest)
        for when, code, digest in database.all(query, (key, groups - STRIKE_WINDOW_GROUPS))
    ]


def _format_event(entry: Entry) -> str:
    said = f"{minute(entry.at)}  entry {entry.seq}: "
    if entry.kind == "node.suspended":
        fact = msgspec.msgpack.decode(entry.facts, type=Suspended)
        return f"{said}suspended until {until(fact.until)} for {fact.code}, evidence {fact.evidence.hex()}"
    if entry.kind == KEY_ROTATED_KIND:
        return f"{said}took the standing of {msgspec.msgpack.decode(entry.facts, type=KeyRotated).node}"
    why = msgspec.msgpack.decode(entry.facts, type=Remark).why
    return said + entry.kind.removeprefix("node.") + (f": {why}" if why else "")


def format_keys(rows: Sequence[KeyRow]) -> list[str]:
    """Return the rows of `list_keys` as lines of text, under their headings."""
    table = [("node", "accepted", "decided", "last seen", "name", "standing")]
    for row in rows:
        seen = minute(row.last_seen) if row.last_seen else "never"
        table.append((row.node, str(row.accepted), str(row.groups), seen, printable(row.name), row.standing))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]


def format_report(report: KeyReport) -> list[str]:
    """Return a report as lines of text."""
    key = report.key
    seen = minute(key.last_seen) if key.last_seen else "never"
    sections: list[tuple[str, list[str]]] = [
        ("node", [key.node]),
        ("name", [printable(key.name)]),
        ("standing", [key.standing + (", vouched for" if report.vouched else "")]),
        ("accepted", [f"{key.accepted} of {number_of(key.groups, 'group')} that the ledger tells of"]),
        ("last seen", [seen]),
        ("reasons", [f"{code} {count}" for code, count in report.codes.items()]),
        ("quarantine", list(map(_format_day, report.quarantined))),
        ("strikes", [f"{minute(one.at)}  {one.code}, evidence {one.evidence}" for one in report.strikes]),
        ("ledger", report.entries),
        ("last leases", [f"{minute(one.at)}  {one.lease}  {one.code}" for one in report.last]),
    ]
    return [
        f"{name if number == 0 else '':<13}{text}".rstrip()
        for name, texts in sections
        for number, text in enumerate(texts or ["none"])
    ]


def _format_day(day: QuarantinedDay) -> str:
    return f"{number_of(day.groups, 'group')}, {day.weight} milli-RE, until {minute(day.until)}"
