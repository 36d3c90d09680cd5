"""Root keys, m of n: how many there are, how many must sign, and their files.

1. `init --root-keys M-of-N` makes N root keys, of which any M sign a Root. At most `MOST_ROOT_KEYS`: the keys of two
   Roots in a row fit into one envelope.
2. Several root keys, and one whose folder is named, are written to that folder: never into the run folder, where the
   online keys are. Their files are named `root-DIGITS.pem` by their fingerprints.
3. Without either option the only root key is `keys/root.pem` of the run folder, and `init` says what that means.
"""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import keys
from echo2.coordinator.run.keys import digits
from echo2.p2p.identity import load_key, public_bytes
from echo2.protocol.root_chain import ROOT
from echo2.runtime.errors import LocalFault

MOST_ROOT_KEYS: Final = 16
"""Most root keys of a run."""


@dataclass(frozen=True)
class RootPlan:
    """The root keys that `init` makes. `out`: their folder; None: the only one lies in the run folder."""

    threshold: int = 1
    number: int = 1
    out: Path | None = None


ONE_HERE: Final = RootPlan()
"""One root key, in the run folder."""


def plan(text: str | None, out: Path | None, run_folder: Path) -> RootPlan:
    """Return the plan of `--root-keys M-of-N` and `--root-out DIR` (rule 2). Raises `LocalFault`."""
    match = re.fullmatch(r"(\d{1,2})-of-(\d{1,2})", "1-of-1" if text is None else text, re.ASCII)
    threshold, number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= threshold <= number <= MOST_ROOT_KEYS:
        raise LocalFault(
            f"--root-keys should be as 2-of-3: how many must sign, of how many, at most {MOST_ROOT_KEYS}; not {text!r}"
        )
    if out is None and number > 1:
        raise LocalFault(f"--root-keys {text} needs --root-out DIR, a folder outside the run folder for the root keys")
    if out is not None and out.resolve().is_relative_to(run_folder.resolve()):
        raise LocalFault(f"--root-out {out} lies in the run folder, beside the online keys: name another folder")
    if out is not None and not _can_hold(out):
        raise LocalFault(f"--root-out {out} is no folder, and none can be made there: name another folder")
    return RootPlan(threshold, number, out)


def _can_hold(out: Path) -> bool:
    """Tell whether `out`, or the nearest folder above it that exists, is a folder in which this user may write."""
    existing = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def make_planned(plan: RootPlan, folder: RunFolder, secret: str | None) -> list[Ed25519PrivateKey]:
    """Make the root keys of a new run (rules 2 and 3). Raises `LocalFault`."""
    if plan.out is None:
        return list(keys.make(folder, secret, [ROOT]).values())
    return [keys.make_next(plan.out, ROOT, secret) for _ in range(plan.number)]


def present(place: Path, publics: Collection[bytes], secret: str | None) -> list[Ed25519PrivateKey]:
    """Return those of the given root keys whose files are in `place`, in the order of `publics`. Raises `LocalFault`
    for a file that cannot be opened."""
    by_public: dict[bytes, Ed25519PrivateKey] = {}
    for path in (place / f"{ROOT}.pem", *(place / f"{ROOT}-{digits(public)}.pem" for public in publics)):
        if path.exists():
            key = load_key(path, secret)
            by_public[public_bytes(key)] = key
    return [by_public[public] for public in publics if public in by_public]


def meaning(plan: RootPlan, run_folder: Path) -> list[str]:
    """Return the lines that `init` prints about the root keys."""
    if plan.out is None:
        return [
            f"ONE ROOT KEY, ON THIS DISK, BESIDE THE ONLINE KEYS: {run_folder / 'keys' / 'root.pem'}",
            "A thief of this disk owns the run for good: no new Root takes it back. If the disk is lost, the run",
            "ends with its Root, in a year. Copy the key to two places that are on no network, check the copies, and",
            "delete it here: the coordinator runs without it; only a new Root (other keys, another year) needs it.",
            "`init --root-keys 2-of-3 --root-out DIR` makes a run that survives the theft, and the loss, of one key.",
        ]
    survives = [
        f"{plan.threshold} of {plan.number} root keys sign a Root. They are in {plan.out}, and not in the run folder.",
        f"A thief needs {plan.threshold} of them. The run survives the loss of {plan.number - plan.threshold}.",
    ]
    if plan.number > 1:
        survives.append("Give each key a place of its own, on no network: together in one folder they are worth one.")
    else:
        survives.append("Copy the key to a second place that is on no network.")
    if run_folder.stat().st_dev == plan.out.stat().st_dev:
        survives.append("THEY ARE STILL ON THE SAME DISK AS THE RUN FOLDER: move them away before you start the run.")
    return survives
