"""Carry out the operator's `echo2-coord verdict show | rerun | reverse`.

Rules
1. A verdict is named by its lease, 32 hexadecimal digits: Receipts, logs and `echo2-coord nodes show` show it.
2. `show` reads run.sqlite, also while a coordinator runs. `rerun` and `reverse` are the running coordinator's: it has
   the scorer, and only one process writes the file.
3. A re-run needs the whole group, which is stored for the challenge window of 24 hours, or until it gave way to others
   (token_storage.py, rule 6). After that the command says what is left, and does nothing. Nor is a group run again that
   failed its first check or came late (reviews.py, rule 2), or one whose version can no longer be loaded.
"""

from collections.abc import Callable
from pathlib import Path

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.nodes.operator_remarks import words
from echo2.coordinator.run import operator_commands
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.verdicts.reviews import Review
from echo2.coordinator.verdicts.verdict_report import Basis, basis_of
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import minute

MOST_WORDS = 300
"""Most characters of a reason; the ledger keeps it for ever."""


def lease_of(text: str) -> bytes:
    """Return the id of a lease. Raises `LocalFault`."""
    try:
        lease = bytes.fromhex(text.strip())
    except ValueError:
        lease = b""
    if len(lease) != 16:
        raise LocalFault(
            f"{text!r} names no lease: give its 32 hexadecimal digits, as in `echo2-coord rollouts ls` or `nodes show`"
        )
    return lease


def carry_out(
    service: GroupService,
    word: str,
    lease: str,
    why: str,
    now: int,
    *,
    may_load: Callable[[bytes], bool] = lambda root: True,
) -> str:
    """Have a verdict checked again ("rerun"), or reverse it ("reverse"); return the outcome as a sentence. `may_load`:
    see `VersionMoves`. Raises `LocalFault`."""
    named = lease_of(lease)
    if word == "rerun":
        record = service.leases.find(named)
        if record is not None and service.reviews.can_check(named) and not may_load(record.lease.root):
            raise LocalFault(
                f"{lease} cannot be checked again: version {record.lease.version}, by which its group was generated, "
                "is no longer kept (`echo2-coord policy ls` shows those that are). Its verdict stands, unless you "
                "reverse it: `echo2-coord verdict reverse`"
            )
        if not service.reviews.ask(named, "operator", now):
            hindrance = service.reviews.by_its_bytes(named)
            raise LocalFault(hindrance or _no_evidence(service.database, service.classes, named))
        return f"{lease} will be checked again by another scorer process: `echo2-coord verdict show` tells the answer"
    if word != "reverse":
        raise LocalFault(f"{word} is no command for a verdict: say rerun or reverse")
    if not why.strip() or len(why) > MOST_WORDS:
        raise LocalFault(f"say why in at most {MOST_WORDS} characters: the node is told, and the ledger keeps it")
    try:
        entry = service.reverse(named, "operator", words(why), now)
    except LookupError as error:
        raise LocalFault(f"{lease} cannot be reversed: {error.args[0]}") from error
    basis = basis_of(service.database, service.classes, named)
    return f"{lease} is reversed by entry {entry.seq}: {_outcome(basis)}"


def submit(home: Path, word: str, lease: str, why: str = "") -> str:
    """Send a command to the coordinator that runs in `home`; return its sentence. Raises `LocalFault`,
    `Unreachable`."""
    lease_of(lease)
    return str(operator_commands.command(home, "verdict", word=word, lease=lease, why=why)["said"])


def show(place: RunFolder, classes: OpenClasses, lease: str) -> list[str]:
    """Return the basis of a verdict as lines of text. Raises `LocalFault`."""
    named = lease_of(lease)
    with Database.read(place.database) as database, database.reading():
        basis = basis_of(database, classes, named)
        if basis is None:
            raise LocalFault(_no_evidence(database, classes, named))
        return lines(basis)


def lines(basis: Basis) -> list[str]:
    """Return the basis of a verdict as lines of text."""
    lease, receipt = basis.lease, basis.receipt
    calibration = "none: its class is exact" if lease.calibration is None else lease.calibration.hex()
    said = [
        ("lease", lease.id.hex()),
        ("node", peer_id(lease.node)),
        ("version", str(lease.version)),
        ("verdict", f"{receipt.verdict}, {receipt.code}, {minute(receipt.at)}, entry {receipt.entry}"),
        ("reason", receipt.reason or "none"),
        ("statistic", basis.statistic or "none"),
        ("threshold", basis.threshold or "none"),
        ("calibration", calibration),
        ("audited", str(basis.first.get("audited", "")) or "no"),
        ("stored", _stored_text(basis)),
        *(("check", _check(one)) for one in basis.reviews),
        ("reversal", _outcome(basis)),
    ]
    return [f"{name:<13}{text}" for name, text in said]


def _check(review: Review) -> str:
    if review.state == "waiting":
        return f"for the {review.by}: waits"
    reason = f" ({review.reason})" if review.reason else ""
    return f"for the {review.by}: {review.code}, {minute(review.answered)}{reason}"


def _stored_text(basis: Basis) -> str:
    if basis.excerpt is None:
        return {"group": "the whole group"}.get(basis.stored, "nothing: 24 hours passed, or newer ones took its place")
    place = "" if basis.excerpt.position is None else f", sampled token {basis.excerpt.position}"
    return f"sample {basis.excerpt.sample}{place}: {len(basis.excerpt.tokens)} tokens from {basis.excerpt.first} on"


def _outcome(basis: Basis | None) -> str:
    reversal = None if basis is None else basis.reversal
    if reversal is None:
        return "none: the verdict stands"
    if reversal.paid:
        return f"{reversal.weight} milli-RE are paid after all ({reversal.why})"
    lacking = f", of which the node lacked {reversal.lacking}" if reversal.lacking else ""
    return f"{reversal.weight} milli-RE are taken back{lacking} ({reversal.why})"


def _no_evidence(database: Database, classes: OpenClasses, lease: bytes) -> str:
    basis = basis_of(database, classes, lease)
    if basis is None:
        return f"there is no verdict on lease {lease.hex()}: it is unknown, still open, or expired"
    return f"{lease.hex()} cannot be checked again: its group is no longer stored; left is {_stored_text(basis)}"
