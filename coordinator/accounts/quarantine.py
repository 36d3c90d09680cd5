"""Groups that were accepted while there was evidence against their node: kept apart until the day has ended.

Rules
1. A group in quarantine is accepted, never trainable, and its weight is posted to `held:<node>` instead of `accrued`.
   From a key's first such group of a day (UTC) on, its groups of that day that have evidence are in quarantine.
2. A day that has ended is settled by one entry per node. The weight goes to the node if the day ended well
   (coordinator/verification/evidence.py, rule 9), else a second check decides (rule 4). Before a further group moves
   the evidence on, the key's ended days are settled.
3. Where a day did not end well, its groups may be run again against a newer Calibration (`DayJudge.rerun`). If that
   agrees with the node, the weight goes to the node all the same, and the entry names the Calibration. They are run
   again once per newer Calibration, not at each look, and a large day over several looks. Until such a re-run has
   finished the day waits, and its check is asked for at once: that is what tells later, when the evidence has moved on,
   that the day ended badly.
4. Where no re-run agrees with the node, the group that began the doubt is checked a second time
   (`DayJudge.check_day`, coordinator/verdicts/reviews.py). The weight goes back to escrow if that confirms the doubt,
   else to the node. A day whose doubt is confirmed may wait for a newer Calibration, and is then run again (rule 3). A
   day without such a check 24 hours after its end, the challenge window, is decided for the node.
5. `DayJudge.end_group` is called for each group in the transaction of that entry, so that its node is told.
6. A call settles at most `AT_ONCE` nodes, and no further one after `MOST_GROUPS` groups, or after a day that was run
   again or a slice of it was: the others wait for the next call. So the end of a day in which many nodes were in doubt
   delays no request for long. While a day waits for its check, a look at it reads a few rows, however many
   groups it has.
"""

from typing import Final, Literal, NamedTuple, Protocol

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.pay import POINTS, PayRule
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ESCROW, accrued_account, quarantine_account
from echo2.ledger.ledger_facts import VERDICT_RULES, QuarantineEnded
from echo2.p2p.identity import peer_id
from echo2.runtime.units import DAY

PREFIX: Final = "quarantine:"
"""Of the keys of `quarantine.ended`."""
_START: Final = -1, b""
AT_ONCE: Final = 64
MOST_GROUPS: Final = 256
"""Some 50 ms."""
Rerun = bytes | Literal["goes on"] | None
"""The result of a re-run: the hash of the Calibration by which a day's groups agree with the node; empty: they do not,
or tokens are no longer stored; None: they were not run. "goes on": a further call is needed."""
Outcome = Literal["waits", "confirmed", "cleared", "none"]
"""The result of a second check of a key's day; "none": there was none in time."""


class DayJudge(Protocol):
    """The owner of the verdicts, asked about days in quarantine (coordinator/verdicts/doubted_days.py). `node`: public
    key. `now`: ms."""

    def ended_badly(self, node: bytes, day: int) -> bool:
        """Tell whether a key's day, as it stands after the key's last group, did not end well."""

    def rerun(self, node: bytes, day: int) -> Rerun:
        """Run the groups of a key in quarantine on a day again, or a part of them."""

    def check_day(self, node: bytes, day: int, now: int) -> Outcome:
        """Return the result of a second check of a key's day."""

    def check_is_waited_for(self, node: bytes, day: int, now: int) -> bool:
        """Tell whether the check of a key's day was asked for and is still waited for."""

    def end_group(self, lease: bytes, paid: bool, now: int) -> None:
        """Note that a group, named by its lease, is in quarantine no longer, and whether it is paid."""


class _End(NamedTuple):
    """The outcome of a look at a day. `run_again`: whether its groups were, also where it is not settled."""

    settled: bool
    run_again: bool


class Quarantine:
    """The table `quarantine`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, ledger: Ledger, accounts: Accounts, pay: PayRule = POINTS) -> None:
        self._first: dict[tuple[bytes, int], bytes] = {}
        """The first group of each day that was looked at and is not settled."""
        self._after = _START
        """The day and node that were looked at last: those whose check is waited for keep out no others."""
        self._database = database
        self._ledger = ledger
        self._accounts = accounts
        self._pay = pay

    def on_decided(self, end: Decided) -> None:
        """Add a group that was accepted in doubt, in the transaction of its verdict."""
        if end.code == "quarantine":
            self.put(end.lease.id, end.lease.node, end.weight, end.now)

    def put(self, lease: bytes, node: bytes, weight: int, now: int) -> None:
        """Add a group, in the transaction of its verdict. `weight`: milli-RE, posted to `held:<node>`."""
        self._database.do("INSERT INTO quarantine VALUES (?, ?, ?, ?)", (lease, node, now // DAY, weight))

    def keeps(self, node: bytes, now: int) -> bool:
        """Tell whether a group of the key is in quarantine of the day of `now`, ms."""
        query = "SELECT 1 FROM quarantine WHERE day = ? AND node = ? LIMIT 1"
        return self._database.one(query, (now // DAY, node)) is not None

    def holds(self, lease: bytes) -> bool:
        """Tell whether a group is in quarantine."""
        return self._database.one("SELECT 1 FROM quarantine WHERE lease = ?", (lease,)) is not None

    def leases(self, node: bytes, day: int) -> list[bytes]:
        """Return the leases of a key's groups in quarantine of a day, in the order of their verdicts."""
        query = (
            "SELECT q.lease FROM quarantine q LEFT JOIN verdicts v ON v.lease = q.lease WHERE q.day = ? AND q.node = ?"
            " ORDER BY v.rowid"
        )
        return [lease for (lease,) in self._database.all(query, (day, node))]

    def first(self, node: bytes, day: int) -> bytes | None:
        """Return the lease of a key's first group in quarantine of a day; None: it has none."""
        if (node, day) not in self._first:
            leases = self.leases(node, day)
            if not leases:
                return None
            self._first[node, day] = leases[0]
        return self._first[node, day]

    def settle(self, judge: DayJudge, now: int) -> int:
        """Settle days that have ended (rules 2 and 6); return how many entries were written."""
        rows = self._ended_days(now)
        settled, before, self._after = 0, 0, self._after if len(rows) == AT_ONCE else _START
        for day, node in rows:
            if not judge.check_is_waited_for(node, day, now):
                groups, weight = self._sum(node, day)
                if settled and before + groups > MOST_GROUPS:
                    break
                ended = self._end(node, day, groups, weight, judge, now)
                if ended.settled:
                    settled, before = settled + 1, before + groups
                if ended.run_again:
                    break
            if len(rows) == AT_ONCE:
                self._after = day, node
        return settled

    def _ended_days(self, now: int) -> list[tuple[int, bytes]]:
        """Return at most `AT_ONCE` days that have ended, with their keys, behind the last one looked at."""
        places: list[tuple[int, bytes]] = []
        at = self._next(*self._after)
        while at is not None and at[0] < now // DAY:
            places.append(at)
            at = self._next(*at) if len(places) < AT_ONCE else None
        return places

    def _next(self, day: int, node: bytes) -> tuple[int, bytes] | None:
        """Return the day and key that follow in the table; None: none does. Two seeks: SQLite reads all rows of the day
        and key where it compares both at once."""
        same = "SELECT day, node FROM quarantine WHERE day = ? AND node > ? ORDER BY node LIMIT 1"
        later = "SELECT day, node FROM quarantine WHERE day > ? ORDER BY day, node LIMIT 1"
        return self._database.one(same, (day, node)) or self._database.one(later, (day,))

    def _sum(self, node: bytes, day: int) -> tuple[int, int]:
        """Return the number of a key's groups in quarantine of a day, and their weight."""
        query = "SELECT count(*), coalesce(sum(weight), 0) FROM quarantine WHERE day = ? AND node = ?"
        ((groups, weight),) = self._database.all(query, (day, node))
        return groups, weight

    def settle_key(self, node: bytes, judge: DayJudge, now: int) -> None:
        """Settle the days of one key that have ended, in the caller's transaction."""
        query = "SELECT min(day) FROM quarantine WHERE day > ?"
        day = self._database.value(query, (-1,))
        while day is not None and day < now // DAY:
            groups, weight = self._sum(node, day)
            if groups and not judge.check_is_waited_for(node, day, now):
                self._end(node, day, groups, weight, judge, now)
            day = self._database.value(query, (day,))

    def _end(self, node: bytes, day: int, groups: int, weight: int, judge: DayJudge, now: int) -> "_End":
        """Settle a day, unless it waits for its check."""
        peer, doubted = peer_id(node), judge.ended_badly(node, day)
        by = judge.rerun(node, day) if doubted else None
        outcome: Outcome = judge.check_day(node, day, now) if doubted and not (by and by != "goes on") else "cleared"
        if outcome == "waits" or by == "goes on":
            return _End(settled=False, run_again=by is not None)
        released, decided = outcome != "confirmed", ""
        if doubted and not by:
            decided = "window" if outcome == "none" else "rerun"
        fact = QuarantineEnded(
            rules=VERDICT_RULES, node=peer, day=day, groups=groups, weight=weight, released=released,
            calibration=by or b"", decided=decided,
        )  # fmt: skip
        postings = self._pay.moves(quarantine_account(peer), accrued_account(peer) if released else ESCROW, weight)
        with self._database.transaction():
            entry = self._ledger.append(now, "quarantine.ended", f"{PREFIX}{peer}:{day}", fact, postings)
            self._accounts.take(entry)
            for lease in self.leases(node, day):
                judge.end_group(lease, released, now)
            self._database.do("DELETE FROM quarantine WHERE node = ? AND day = ?", (node, day))
        self._first.pop((node, day), None)
        return _End(settled=True, run_again=by is not None)
