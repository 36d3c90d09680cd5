"""The command `echo2-coord redteam`: which attacks are tried, the table, and the exit status."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from benchmarks.attacks.campaign import Campaign
from benchmarks.attacks.catalogue import ATTACKS, SENTENCES, TRIED
from benchmarks.attacks.held_elsewhere import HELD_ELSEWHERE
from benchmarks.attacks.outcome import AttackRow
from benchmarks.attacks.pay_rows import COMPUTED
from benchmarks.attacks.proving_ground import ProvingGround
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.demo.interruption import terminated_like_interrupted
from echo2.coordinator.settings import config as configuration
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault

_OF_ALL: Final = {
    **{one: row.family for one, row in ATTACKS.items()},
    **{one: row.family for one, row in COMPUTED.items()},
}
FAMILIES: Final = tuple(dict.fromkeys(_OF_ALL.values()))


def family_of(sentence: str) -> str:
    """Return the family of an attack."""
    return _OF_ALL[sentence]


def chosen(names: Sequence[str], quick: bool) -> list[str]:
    """Return the sentences of the attacks to try. A name is a family, a word of a sentence, or an attack of the
    design's catalogue. Raises `SettingsFault` for a name that fits none."""
    if not names:
        return [sentence for sentence in SENTENCES if not quick or _is_quick(sentence)]
    sentences = dict.fromkeys(sentence for name in names for sentence in _named(name))
    return [sentence for sentence in SENTENCES if sentence in sentences]


def _is_quick(sentence: str) -> bool:
    return ATTACKS[sentence].quick if sentence in ATTACKS else COMPUTED[sentence].quick


def _named(name: str) -> list[str]:
    wanted = TRIED.get(name, name).lower().strip()
    fits = [one for one in SENTENCES if wanted == family_of(one) or wanted in one.lower()]
    sentences = fits if wanted else []
    if not sentences and name not in HELD_ELSEWHERE:
        families = ", ".join(FAMILIES)
        raise SettingsFault(f"no attack {name!r}: name one of {families}, a part of a sentence, or leave --attack out")
    return sentences


def notes_on(names: Sequence[str]) -> list[str]:
    """Return a line for each attack of the design that is not tried: all of them, or those named."""
    return [f"{one}: {where}" for one, where in HELD_ELSEWHERE.items() if not names or one in names]


def settings_at(home: Path | None) -> CoordinatorConfig | None:
    """Return the operator's own settings; None where no run folder is named."""
    return None if home is None else configuration.load(RunFolder(home).config, env={})


def play(names: Sequence[str], *, quick: bool, as_json: bool, home: Path | None, console: Console) -> bool:
    """Try the attacks and print the table; return whether no row is broken. Raises `LocalFault`."""
    notes, sentences = notes_on(names), chosen(names, quick)
    rows: list[AttackRow] = []
    computed: list[AttackRow] = []
    calm, began = list[float](), time.monotonic()
    for market in (False, True):
        tried = [one for one in sentences if one in ATTACKS and ATTACKS[one].market == market]
        if tried:
            engines = any(ATTACKS[one].generates for one in tried)
            place = partial(ProvingGround, settings_at(home), market=market, engines=engines)
            with terminated_like_interrupted(), place() as ground:
                campaign = Campaign(ground, quick=quick)
                computed = computed or _computed(sentences, quick)  # while honest nodes begin
                campaign.begin()
                calm.append(campaign.calm)
                if campaign.calm <= 0:
                    raise LocalFault("honest nodes had no accepted group in calm: try again on a less busy machine")
                rows.extend(campaign.rows(tried))
    rows.extend(computed or _computed(sentences, quick))
    if as_json:
        print(msgspec.json.encode({"calm": calm[0] if calm else 0.0, "rows": rows, "held_elsewhere": notes}).decode())
    else:
        _print(console, rows, notes, calm, time.monotonic() - began)
    return all(row.outcome != "broken" for row in rows)


def _computed(sentences: Sequence[str], quick: bool) -> list[AttackRow]:
    """Compute those of these attacks that need no run."""
    return [COMPUTED[sentence].row(sentence, quick) for sentence in sentences if sentence in COMPUTED]


def _print(console: Console, rows: list[AttackRow], notes: list[str], calm: list[float], seconds: float) -> None:
    """Print the rows, then what was not tried: a count of zero broken ones says nothing of those."""
    if rows:
        for rate in calm:
            console.print(f"calm: {rate:.2f} accepted groups of honest nodes per second")
        console.print("\n".join(table_of(rows)), soft_wrap=True, markup=False)
    if notes:
        console.print("not tried here:")
        for note in notes:
            console.print(f"  {note}", soft_wrap=True, markup=False)
    if rows:
        broken = sum(row.outcome == "broken" for row in rows)
        console.print(f"{len(rows)} attacks, {broken} broken, {seconds:.0f} s by the clock")


def table_of(rows: Sequence[AttackRow]) -> list[str]:
    """Return the table for people, a line a row: the sentence and the note stand last, since they are long."""
    head = ("outcome", "tried", "named", "harmed", "s", "CPU s", "ours", "KB out", "KB in", "attack")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(row_cells[place]) for row_cells in cells) for place in range(len(head) - 1)]
    padded = [[cell.ljust(width) for cell, width in zip(one, widths, strict=False)] for one in cells]
    return ["  ".join([*start, one[-1]]) for start, one in zip(padded, cells, strict=True)]


def _cells(row: AttackRow) -> tuple[str, ...]:
    named = "-" if row.named is None else str(row.named)
    seconds, cpu, ours = f"{row.seconds:.1f}", f"{row.attacker_cpu:.2f}", f"{row.operator_cpu:.2f}"
    sentence = f"{row.attack}: {row.note}" if row.note else row.attack
    out, back = f"{row.sent / 1000:.1f}", f"{row.received / 1000:.1f}"
    return row.text, str(row.tried), named, str(row.harmed), seconds, cpu, ours, out, back, sentence
