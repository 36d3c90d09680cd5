"""`echo2-coord payout approve`: an approver signs a plan, on a copy of its folder, without run folder or network.

Rules
1. A key signs only if the newest Root beside the plan names it in the role `payout`. Other keys in the folder are named
   and not used; without any that may sign, the command refuses.
2. An approver who was told the SHA-256 of the plan's file names it: another file is refused.
3. Signatures that are there stay. A key that has signed already changes nothing, and is named. An approval of another
   plan, or of another file of this one, is refused.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.payouts import payout_checks, payout_report, plan_files
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.run.keys import PAYOUT, digits
from echo2.p2p.envelope import decode_unverified, join, seal
from echo2.p2p.errors import PeerFault
from echo2.p2p.identity import load_key, public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root
from echo2.protocol.payout_approval import PayoutApproval
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of


class _Signers(NamedTuple):
    keys: list[Ed25519PrivateKey]
    named: list[str]


def approve(folder: Path, place: Path, secret: str | None, expected: str | None = None, *, do: bool) -> list[str]:
    """Sign a plan with the payout keys in the folder `place`, and add the signatures to those there. `expected`: the
    SHA-256 of the plan's file, in hexadecimal digits, as the approver was told it; None: it was not. Raises
    `LocalFault`, `Untrusted`."""
    plan = plan_files.read_plan(folder)
    _check_file(plan, expected)
    root = plan_files.read_root(folder, plan)
    earlier = plan_files.read_approval(folder)
    if earlier is not None:
        _check_same(plan, earlier, folder)
    lines = payout_report.describe_plan(plan, plan_files.read_accounts(folder, plan.payments))
    signers = _signers(place, secret, root)
    lines += signers.named
    signed = _signers_of(plan, earlier, root)
    new = [key for key in signers.keys if public_bytes(key) not in signed]
    again = [key for key in signers.keys if public_bytes(key) in signed]
    lines += [f"signed      already by key {digits(public_bytes(key))}: it changes nothing" for key in again]
    if not do:
        return [*lines, f"nothing was signed: --yes signs it with {number_of(len(new), 'key')}"]
    if new:
        sealed = seal(PAYOUT, plan.run, plan.approval(), *new)
        if earlier is not None:
            sealed = join([sealed, earlier], signed | {public_bytes(key) for key in new})
        plan_files.write_approval(folder, sealed)
        lines.append(f"signed by {number_of(len(new), 'key')}: {folder / 'approval'}")
    return [*lines, _standing(root, len(signed) + len(new))]


def _check_file(plan: PlanFile, expected: str | None) -> None:
    """Compare the plan's file with the hash that the approver was told (rule 2). Raises `LocalFault`."""
    own = plan.entry_facts().file.hex()
    if expected is not None and expected.strip().lower() != own:
        raise LocalFault(
            f"the file of plan {plan.plan} has the SHA-256 {own}, and not the one that you named: ask who gave you "
            "either; nothing was signed"
        )


def _check_same(plan: PlanFile, earlier: bytes, folder: Path) -> None:
    """Check that the approval there is of this plan (rule 3). Raises `LocalFault`."""
    path = folder / "approval"
    try:
        envelope = decode_unverified(earlier)
        other = decode(envelope.payload, PayoutApproval)
    except PeerFault as error:
        raise LocalFault(f"{path} is damaged: move it away, and have its approvers sign again ({error})") from error
    if envelope.kind != PAYOUT or envelope.run != plan.run or other.run != plan.run:
        raise LocalFault(f"{path} is an approval of another run: move it away; nothing was signed")
    if envelope.payload != plan.approval():
        what = f"plan {other.plan}" if other.plan != plan.plan else "another file or LedgerHead of this plan"
        raise LocalFault(
            f"{path} approves {what} (file {other.file.hex()[:16]}, LedgerHead {other.head}), not this one (file "
            f"{plan.entry_facts().file.hex()[:16]}, LedgerHead {plan.head}): move it away; nothing was signed"
        )


def _signers(place: Path, secret: str | None, root: Root) -> _Signers:
    """Return the keys in a folder that may sign, and a line about each other one (rule 1). Raises `LocalFault`."""
    role = root.roles.get(PAYOUT)
    if role is None:
        raise LocalFault(payout_checks.NO_ROLE)
    paths = sorted(place.glob(f"{PAYOUT}-*.pem"))
    if not paths:
        raise LocalFault(f"no payout key is in {place}: name its folder with --keys; the file is {PAYOUT}-DIGITS.pem")
    keys = {path: load_key(path, secret) for path in paths}
    strange = [path for path, key in keys.items() if public_bytes(key) not in role.keys]
    if len(strange) == len(paths):
        raise LocalFault(f"nothing was signed: {_strange(strange, role.keys, root)}")
    named = [f"not used    {_strange([path], role.keys, root)}" for path in strange]
    return _Signers([key for path, key in keys.items() if path not in strange], named)


def _strange(paths: Sequence[Path], known: Sequence[bytes], root: Root) -> str:
    names = ", ".join(path.name for path in paths)
    return (
        f"{names} in {paths[0].parent} may approve nothing: the role `payout` of Root {root.serial} of this run has "
        f"the keys {', '.join(map(digits, known))}"
    )


def _signers_of(plan: PlanFile, earlier: bytes | None, root: Root) -> set[bytes]:
    try:
        return payout_checks.signed_by(plan, earlier, root)
    except PeerFault as error:
        raise LocalFault(f"the approval there is damaged: move it away ({error})") from error


def _standing(root: Root, signed: int) -> str:
    threshold = root.roles[PAYOUT].threshold
    more = f"{threshold - signed} more needed" if signed < threshold else "enough: `echo2-coord payout send` checks it"
    return f"approved    by {signed} of {threshold} required keys; {more}"
