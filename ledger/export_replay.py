"""Replay an export of the ledger, and say whether it is what the coordinator's tables say: `echo2-coord ledger replay`.

Rules
1. The export is verified and replayed in one pass (ledger_audit.py, ledger_replay.py). It takes no private key, and no
   other file of the run.
2. Where the export has the coordinator's own state, both must be the same, every byte.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from echo2.ledger.audited_work import ONE, decay_count
from echo2.ledger.export_files import STATE
from echo2.ledger.ledger_audit import Audit, audit, chain_of, spec_of
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.ledger.ledger_state import KeyState, LedgerState, MarketOf, points_alone
from echo2.ledger.team_work import TeamReplay
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.figures import number_of

SHOWN_NODES = 10
"""Nodes of the ranking that the report shows."""


class Replayed(NamedTuple):
    """A replayed export. `compared`: whether the coordinator's own state was there. `teams`: teams of its entries."""

    audit: Audit
    state: LedgerState
    compared: bool
    teams: TeamReplay


def replay(folder: Path, market_of: MarketOf = points_alone) -> Replayed:
    """Replay an export. `market_of`: the rules of its market. Raises `Tampered` with the number of the first entry that
    differs, `Untrusted`, and `LocalFault` for a folder that is no export."""
    chain = chain_of(folder)
    replayed = LedgerReplay(chain, market_of(spec_of(folder, chain)))
    teams = TeamReplay()

    def take(entry: Entry) -> None:
        replayed.take(entry)
        teams.take(entry)

    audited = audit(folder, take)
    state, path = replayed.state(), folder / STATE
    if not path.is_file():
        return Replayed(audited, state, False, teams)
    ours, theirs = state.as_bytes(), path.read_bytes()
    if ours != theirs:
        raise Untrusted(f"the coordinator's state is not that of its ledger: {_difference(ours, theirs)}")
    return Replayed(audited, state, True, teams)


def _difference(ours: bytes, theirs: bytes) -> str:
    """Return the first line that differs, both ways."""
    rows = zip(ours.splitlines(), theirs.splitlines(), strict=False)
    for number, (one, other) in enumerate(rows, start=1):
        if one != other:
            return f"line {number} is {_format_row(other)}, and {_format_row(one)} follows from the entries"
    return f"it has {len(theirs)} bytes, and {len(ours)} follow from the entries"


def _format_row(row: bytes) -> str:
    return row.decode(errors="backslashreplace").strip()[:120]


def page_lines(replayed: Replayed) -> list[str]:
    """Return the ranking as the page shows it (coordinator/web/node_rows.py): every node with accepted work, in the
    page's order, as CSV under a line that says as of which entry and head. The teams follow, by the commitments to
    their names. Scores are those at the time of the last entry."""
    state, audited, teams = replayed.state, replayed.audit, replayed.teams.ranking()
    return [
        f"# as of entry {state.entries}, head {audited.heads} over {audited.covered} of them",
        "place,id,weight,accepted,rollouts,tokens,points,rank,score",
        *(
            f"{place},{one.node},{one.weight},{one.groups},{one.rollouts},{one.tokens},{one.accrued},{one.rank},"
            f"{_score(state.keys.get(one.node), replayed.teams.at)}"
            for place, one in enumerate(state.ranking, start=1)
        ),
        *(["place,team,weight,groups,members,score"] if teams else []),
        *(
            f"{place},{one.team.hex()},{one.weight},{one.groups},{one.members},{one.score}"
            for place, one in enumerate(teams, start=1)
        ),
    ]


def _score(key: KeyState | None, at: int) -> int:
    """Return the score of a node at `at` (ms), in thousandths of a group, as the page shows it."""
    if key is None:
        return 0
    audited, _ = decay_count(int(key.account["audited"] or 0), int(key.account["aged"] or 0), at)
    return 1000 * audited // ONE


def lines(replayed: Replayed) -> list[str]:
    """Return the report as lines of text."""
    state = replayed.state
    known = sum(one.rank != "new" for one in state.keys.values())
    same = "every byte as the coordinator has it" if replayed.compared else "the coordinator's own is not in the export"
    return [
        f"entries     {state.entries}, each with the key, weight and postings that follow from it and those before",
        f"state       SHA-256 {hashlib.sha256(state.as_bytes()).hexdigest()}: {same}",
        f"keys        {len(state.keys)}, of which {known} are known or proven",
        f"ranking     {number_of(len(state.ranking), 'node')}, as of entry {state.entries}",
        *(
            f"{place:>6}  {one.weight / 1000:>14.3f} RE  {one.groups:>8} groups  {one.rank:<6}  {one.node}"
            for place, one in enumerate(state.ranking[:SHOWN_NODES], start=1)
        ),
    ]
