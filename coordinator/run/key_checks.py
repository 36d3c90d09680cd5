"""`echo2-coord doctor`: which protections of the run's keys, and against its children, are in force on this machine.

1. Each finding says what is checked, whether it holds, and what to do where it does not. None changes the run.
2. The key folder is probed as learner and scorer see it, and as an environment does: in processes of their own
   (runtime/hidden_folder.py, coordinator/environments/limits.py).
"""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import keys, setup, signing
from echo2.coordinator.run.keys import ONLINE, PAYOUT
from echo2.coordinator.settings.computing import check_present, computing_of
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.p2p.identity import peer_id
from echo2.protocol.authority import Root
from echo2.protocol.root_chain import ROOT
from echo2.runtime import network_trials
from echo2.runtime.child_budgets import seen_by_all
from echo2.runtime.python_command import code_command
from echo2.runtime.settings import SettingsFault

PROBE_PROGRAM: Final = (
    "import os, sys; from echo2.runtime.hidden_folder import hide_named; hide_named(); os.listdir(sys.argv[1])"
)
ENVIRONMENT_PROGRAM: Final = """
import os, sys
from echo2.coordinator.environments.limits import Limits, apply
missing = apply(Limits())
try:
    os.listdir(sys.argv[1])
    missing = missing or f"it reads {sys.argv[1]}, which lies beside packages of this Python"
except OSError:
    pass
print(missing)
"""
_PROBE_SECONDS: Final = 60.0


class KeyCheck(NamedTuple):
    """One check. `remedy`: what to do; empty where it holds."""

    check: str
    actual: str
    remedy: str = ""

    def describe_finding(self) -> str:
        """Return the finding as a line for people."""
        mark = "warn" if self.remedy else "?   " if self.actual.startswith("not known") else "ok  "
        return f"{mark}  {self.check}: {self.actual}" + (f"; {self.remedy}" if self.remedy else "")


def examine(place: RunFolder, payout: PayoutSection, now: int) -> list[KeyCheck]:
    """Return the findings for a run folder. `payout`: its settings. `now`: ms. Raises `Untrusted`, `LocalFault`."""
    _, chain, _, _ = setup.read_documents(place)
    return [
        hidden_from_children(place.keys),
        _passphrase(),
        _modes(place),
        *_root_keys(place, chain),
        _life(chain[-1], now),
        _former(place, chain, now),
        *payments(payout, chain[-1]),
        *_networks(),
        children_memory(),
        environments(place.keys),
    ]


def device_and_threads(learner: LearnerSection, scorer: ScorerSection) -> KeyCheck:
    """Check that this machine has the devices that the settings name."""
    check = "devices and threads"
    try:
        check_present(learner, scorer)
    except SettingsFault as error:
        return KeyCheck(check, str(error), "until then the run does not start")
    return KeyCheck(check, computing_of(learner, scorer).sentence())


def ray_cluster(scorer: ScorerSection) -> list[KeyCheck]:
    """Check the cluster of `scorer.ray`, where it is set, and say what its network must be."""
    if not scorer.ray:
        return []
    from echo2.coordinator.ray_scorers.cluster_check import NETWORK_WARNING, check_cluster
    from echo2.runtime.errors import LocalFault

    check = "scorers by Ray"
    try:
        return [KeyCheck(check, f"{check_cluster(scorer)}; {NETWORK_WARNING}")]
    except LocalFault as error:
        return [KeyCheck(check, str(error), "until then the run does not start")]


def hidden_from_children(folder: Path) -> KeyCheck:
    """Probe whether this system hides the key folder from learner and scorer (rule 2)."""
    check = "learner and scorer cannot read the keys"
    env = {**os.environ, "ECHO2_HIDDEN_FOLDER": str(folder.resolve())}
    argv = code_command(PROBE_PROGRAM + " and sys.exit(3)", str(folder))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    if done.returncode == 0:
        return KeyCheck(check, "their processes see an empty folder, and cannot trace the coordinator")
    why = done.stderr.strip().splitlines()[-1:] or [f"the probe ended with {done.returncode}"]
    return KeyCheck(check, why[0], "they run as the coordinator's user and can: allow user namespaces to it")


def _networks() -> list[KeyCheck]:
    """Try what keeps each kind of child from the network (runtime/child_budgets.py, rule 3)."""
    return [KeyCheck(f"network of {one.children}", one.actual, one.remedy) for one in network_trials.trials()]


def children_memory() -> KeyCheck:
    """State whose memory is closed to other processes of this user (runtime/own_memory.py)."""
    check = "memory of our processes is closed to each other"
    if not sys.platform.startswith("linux"):
        return KeyCheck(check, f"no, {sys.platform} has nothing for it", "run no task that you do not know")
    return KeyCheck(check, f"yes, but for {seen_by_all()}, whose processes share the memory of devices")


def environments(folder: Path) -> KeyCheck:
    """Probe what an environment sees of other processes and of the key folder (rule 2)."""
    check = "environments see no other process, and no files but their own"
    argv = code_command(ENVIRONMENT_PROGRAM, str(folder.resolve()))
    with tempfile.TemporaryDirectory() as own:
        done = subprocess.run(argv, cwd=own, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    missing = done.stdout.strip() if done.returncode == 0 else f"the probe ended with {done.returncode}"
    if not missing:
        return KeyCheck(check, "yes")
    return KeyCheck(
        check, missing, "run no task that you do not know, or use a Linux with user namespaces and Landlock"
    )


def payments(settings: PayoutSection, root: Root) -> list[KeyCheck]:
    """Check what payments in money need: the rail's settings and files, and the role that approves. None in points."""
    if settings.rail == "points":
        return []
    from echo2.coordinator.rails import registry  # a run in points loads no rail

    fault = registry.fault_here(settings)
    rail = KeyCheck(f"payments by {settings.rail}", "nothing lacks", "")
    if fault:
        rail = KeyCheck(rail.check, "not possible yet", fault)
    role = root.roles.get(PAYOUT)
    if role is None:
        lacks = "`echo2-coord keys make-payout`, then `keys export-root --payout KEY` (docs/money.md)"
        return [rail, KeyCheck("approvers of payments", "none: no payment can be planned", lacks)]
    return [rail, KeyCheck("approvers of payments", f"{role.threshold} of {len(role.keys)} approve a plan")]


def _passphrase() -> KeyCheck:
    check = "key files are encrypted"
    if keys.passphrase():
        return KeyCheck(check, f"{keys.PASSPHRASE_VARIABLE} is set; learner and scorer do not get it")
    return KeyCheck(check, "no", f"set {keys.PASSPHRASE_VARIABLE} at `init`, and for `run`")


def _modes(place: RunFolder) -> KeyCheck:
    check = "key files are readable by their owner only"
    open_ones = [path.name for path in place.keys.glob("*.pem") if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if not open_ones:
        return KeyCheck(check, "yes")
    return KeyCheck(check, f"not {', '.join(sorted(open_ones))}", f"chmod 600 them in {place.keys}")


def _root_keys(place: RunFolder, chain: Sequence[Root]) -> list[KeyCheck]:
    role = chain[-1].roles[ROOT]
    here = [path for key in role.keys if (path := keys.path_in(place.keys, ROOT, key)).exists()]
    several = KeyCheck("root keys", f"{role.threshold} of {len(role.keys)} sign a Root")
    if role.threshold == 1:
        several = several._replace(remedy="one stolen key is enough: `keys export-root --threshold` (docs/keys.md)")
    offline = KeyCheck("root keys are offline", "yes")
    if here:
        names = ", ".join(sorted({path.name for path in here}))
        offline = KeyCheck("root keys are offline", f"{names} in {place.keys}", "copy and delete: a thief owns the run")
    return [several, offline]


def _life(root: Root, now: int) -> KeyCheck:
    soon = signing.ends_soon(root, now)
    return KeyCheck("the Root lasts", soon or "more than 30 days", "`echo2-coord keys renew`" if soon else "")


def _former(place: RunFolder, chain: Sequence[Root], now: int) -> KeyCheck:
    check = "network identity"
    own = peer_id(keys.identity(chain))
    missing = [role for role in ONLINE if not keys.path_of(place, role, chain[-1]).exists()]
    if missing:
        return KeyCheck(check, own, f"no key file for {', '.join(missing)}: put it back, or `keys rotate` it")
    former = keys.former_identity(chain, now)
    return KeyCheck(check, own if former is None else f"{own}, before {peer_id(former.public)}")
