"""`echo2-node discover`: the runs of the local network, and those of the owner's directories."""

import asyncio
from collections.abc import Sequence
from typing import Any

from echo2.node.config import NodeConfig
from echo2.node.links.local_discovery import look
from echo2.node.links.run_directories import FetchedDirectory, fetch_directories, parse_directory
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.mdns import Announcement
from echo2.runtime.units import unix_milliseconds


def discover_runs(config: NodeConfig, seconds: float) -> list[dict[str, Any]]:
    """Listen for `seconds`, and fetch the directories; return a row per run, and one per directory that cannot be had.
    Raises `BadConfig`."""
    names = [parse_directory(text) for text in config.directories]
    fetched = asyncio.run(fetch_directories(names, config.home, unix_milliseconds()))
    return rows_of(look(seconds), fetched)


def rows_of(announced: Sequence[Announcement], fetched: Sequence[FetchedDirectory]) -> list[dict[str, Any]]:
    """Return a row per run. `source`: local network, or the address of a directory. `trouble`: what is wrong
    with it."""
    rows = [_row("local network", one.invite, one.name, {"addresses": one.invite.addresses}) for one in announced]
    for directory in fetched:
        if directory.content is None:
            rows.append({"source": directory.name.url, "trouble": directory.trouble})
            continue
        old = "this list has expired: its runs may have moved" if directory.expired else ""
        for run, invite in zip(directory.content.runs, directory.content.invites(), strict=True):
            told = {"description": run.description, "model": run.model, "task": run.task, "state": run.state,
                    "page": run.page, "invite": run.invite, "trouble": old}  # fmt: skip
            rows.append(_row(directory.name.url, invite, run.name, told))
    return rows


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows for people, by source."""
    texts, source = list[str](), ""
    for row in rows:
        if row["source"] != source:
            source = row["source"]
            texts.append(f"{source}:{' ' + row['trouble'] if row.get('trouble') else ''}")
        if "fingerprint" not in row:
            continue
        about = "; ".join(str(row[name]) for name in ("model", "task", "state", "page") if row.get(name))
        texts.append(f"  {row['fingerprint']}  {row['name']}{f' ({about})' if about else ''}")
        texts += [f"    {row['description']}"] if row.get("description") else []
        join = f"join {row['invite']}" if row.get("invite") else f"join --accept-fingerprint {row['fingerprint']}"
        texts.append(f"    echo2-node {join}")
    return texts or ["no run is announced here; `directories` names lists of runs, as URL#KEY"]


def _row(source: str, invite: Invite, name: str, told: dict[str, Any]) -> dict[str, Any]:
    return {"source": source, "fingerprint": invite.fingerprint, "name": name, **told}
