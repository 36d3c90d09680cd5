"""`echo2-coord doctor`: whether this machine and its network are fit for the run. Each check is a `KeyCheck`.

1. Nothing here can see this machine from outside. Connections that come in from public addresses show that it is
   reached there: the running coordinator counts them.
2. A figure that the system does not show is said to be not known, and is no warning.
"""

import http.client
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.learner.memory_plan import MOMENT_BYTES
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.run import https_identity, keys, learner_checks, setup
from echo2.coordinator.run.disk_room import bytes_to_run
from echo2.coordinator.run.key_checks import KeyCheck
from echo2.coordinator.run.task_processes import TaskPlace, inspect_task
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.verdicts.token_storage import stored_bytes
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import peer_id
from echo2.p2p.multiaddr import address_of
from echo2.protocol.authority import RunSpec
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import size
from echo2.runtime.host_memory import memory_limit
from echo2.runtime.printable import printable
from echo2.runtime.settings import SettingsFault
from echo2.weights.hf_import import stored_headers
from echo2.weights.lora.adapter_config import CONFIG as ADAPTER_CONFIG

SPARE: Final = 3e9
"""Bytes beside checkpoints, versions and groups: ledger, logs."""
LEARNER_BYTES: Final = 10
"""Bytes per trained parameter that the learner keeps between steps, beside AdamW's moments (`python -m
benchmarks.learner`, state)."""
BASE_BYTES: Final = 4
"""The same of a frozen base, in float32."""
SCORER_BYTES: Final = 4
ANSWER_SECONDS: Final = 10.0
MOST_BYTES: Final = 4 << 20


def examine(place: RunFolder, settings: CoordinatorConfig, spec: RunSpec) -> list[KeyCheck]:
    """Return the findings for a run folder. Raises `Untrusted`, `LocalFault`."""
    state, stored, most = _state(place, settings, spec), _stored_bytes(place), settings.store.rollout_bytes
    return [
        addresses(_addresses(place, settings, state), state),
        ports(state),
        disk(place.path, bytes_to_run(place, settings.scorer.own_number) + max(0, most - stored)),
        rollouts(stored, most),
        memory(place, settings),
        *(data_of(task, settings) for task in setup.task_places(place, spec, settings.run)),
        clock(),
        public_page(spec.page, spec.run),
        rates(state),
    ]


def addresses(invited: Sequence[str], state: RunState | None) -> KeyCheck:
    """Check that nodes outside this network can reach the invite's addresses. `state`: the running coordinator's; None:
    none runs."""
    check = "addresses that nodes dial"
    public = [address for address in invited if is_public(address)]
    connected = 0 if state is None else state.nodes_connected
    seen = f"; {connected} {'node is' if connected == 1 else 'nodes are'} connected" if connected else ""
    if public:
        return KeyCheck(check, f"{len(public)} of {len(invited)} are public, the first {public[0]}{seen}")
    return KeyCheck(
        check,
        f"all {len(invited)} are private, so only nodes of your own network reach the run{seen}",
        "forward the port on your router, or use a host with a public address, and name it in network.advertise",
    )


def ports(state: RunState | None) -> KeyCheck:
    """State what nodes outside have shown of the ports (rule 1). `state`: the running coordinator's; None: none
    runs."""
    check = "ports, as nodes outside see them"
    if state is None:
        return KeyCheck(check, "not known: no coordinator runs here")
    if came := state.links.outside:
        return KeyCheck(check, f"open: {came:,} connections came in from public addresses")
    if relayed := sum(node.connected and node.route == "relay" for node in state.nodes):
        return KeyCheck(check, f"no connection came in from a public address; nodes that come by a relay: {relayed}")
    return KeyCheck(
        check,
        "not known: no connection has come in from a public address; `echo2-node doctor INVITE` on a machine elsewhere "
        "tries each address",
    )


def is_public(address: str) -> bool:
    """Tell whether a multiaddress may be reached from the internet: a public IP address, or a name."""
    parsed = address_of(address)
    return parsed.ip.is_global if parsed.ip is not None else parsed.is_named and parsed.host != "localhost"


def disk(place: Path, to_run: int, free: Callable[[Path], int] | None = None) -> KeyCheck:
    """Check the free disk space. `to_run`: bytes of checkpoints, versions and groups to come. `free`: returns the free
    bytes of a folder's disk."""
    left = (free or (lambda folder: shutil.disk_usage(folder).free))(place)
    wanted = to_run + SPARE
    words = f"{left / 1e9:,.1f} GB free, {wanted / 1e9:,.1f} GB wanted"
    remedy = f"free space on the disk of {place}, or move the folder" if left < wanted else ""
    return KeyCheck("disk", words, remedy)


def rollouts(stored: int, most: int) -> KeyCheck:
    """State how many bytes of groups are stored, and their bound, `store.rollout_bytes`."""
    beyond = "; what is beyond it is needed" if stored > most else ""
    return KeyCheck("rollouts on disk", f"{size(stored)}, at most {size(most)} (store.rollout_bytes){beyond}")


def memory(place: RunFolder, settings: CoordinatorConfig, limit: Callable[[], int] = memory_limit) -> KeyCheck:
    """Check the memory of the learner's card, or of this machine where it computes on the CPU. `limit`: bytes that this
    machine's processes may take. Raises `LocalFault`."""
    check = "memory"
    learner = settings.learner
    if (device := computing_of(learner, settings.scorer).device).startswith("cuda"):
        try:
            card = learner_checks.check_card(place.model, settings)
        except SettingsFault as error:
            return KeyCheck(check, str(error), "set it before the next start")
        fits = f"the learner fits on {device}, which has {card / 1e9:,.1f} GB"
        return KeyCheck(check, fits if card else f"not known of {device}: it is not here, or an adapter is trained")
    adapter = (place.model / ADAPTER_CONFIG).is_file()
    count = sum(prod(entry.shape) for entry in stored_headers(place.model))
    moments = MOMENT_BYTES["8bit" if learner.optimiser_state == "8bit" else "float32"]  # of this host in either case
    each = (BASE_BYTES if adapter else LEARNER_BYTES + moments) + SCORER_BYTES * settings.scorer.own_number
    words = f"{limit() / 1e9:,.1f} GB, and learner and scorer keep about {each * count / 1e9:,.1f} GB between steps"
    remedy = "use a smaller model, or --lora-rank; learner.optimiser_state=8bit takes 6 bytes per parameter less"
    return KeyCheck(check, words, remedy if each * count > limit() else "")


def data_of(task: TaskPlace, settings: CoordinatorConfig) -> KeyCheck:
    """Check that a task opens and poses its first prompt: that its data is there."""
    check = f"task {task.name}"
    try:
        facts, _ = inspect_task(task, settings.environment, settings.run.limit)
    except LocalFault as error:
        return KeyCheck(check, str(error), "put it right before the next start")
    return KeyCheck(check, f"{facts.train:,} prompts in train, {facts.heldout:,} in heldout")


def clock(run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run) -> KeyCheck:
    """Check that this machine's clock is kept by time servers: nodes judge the age of a Head by theirs."""
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        said = run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        said = ""
    if said == "no":
        return KeyCheck("clock", "not kept by a time server", "switch it on: `timedatectl set-ntp true`")
    return KeyCheck("clock", "kept by a time server" if said == "yes" else "not known: this system does not say")


def public_page(page: str, run: bytes) -> KeyCheck:
    """Check that the run's page is at its public address. `page`: that of the RunSpec; empty: none is stated."""
    check = "the page at its public address"
    if not page:
        return KeyCheck(check, "not stated: run.page is empty")
    remedy = "put the reverse proxy right, name its host in web.names, and look at it from another network"
    try:
        shown = json.loads(_fetch(f"{page.rstrip('/')}/api/v1/run")).get("run")
    except (OSError, ValueError, AttributeError, RecursionError, http.client.HTTPException) as error:
        return KeyCheck(check, f"{page} does not show it ({printable(getattr(error, 'reason', error))})", remedy)
    if shown != run.hex():
        return KeyCheck(check, f"{page} shows another run", remedy)
    return KeyCheck(check, f"{page} shows this run")


def _fetch(url: str) -> bytes:
    """Fetch an answer that comes whole within `ANSWER_SECONDS`. Raises OSError, ValueError, HTTPException."""
    ends, body = time.monotonic() + ANSWER_SECONDS, bytearray()
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
        while piece := answer.read1(1 << 16):
            body += piece
            if len(body) > MOST_BYTES or time.monotonic() > ends:
                raise TimeoutError("its answer does not end")
    return bytes(body)


def rates(state: RunState | None) -> KeyCheck:
    """State how fast learner and scorers are, and whether the scorers keep up. `state`: the running coordinator's."""
    check = "learner and scorer"
    if state is None or state.capacity.step_seconds is None:
        return KeyCheck(check, "not known: no coordinator runs here, or it has made no step")
    needed = state.capacity.rollouts_per_step / max(state.capacity.step_seconds, 1e-9)
    words = f"a step takes {state.capacity.step_seconds:.3g} s and {state.capacity.rollouts_per_step:g} rollouts"
    verified = state.capacity.verified
    if verified is None:
        return KeyCheck(check, words)
    slow = "another device in scorer.devices, or fewer rollouts per step" if verified < needed else ""
    number = state.capacity.scorers
    verify = "the scorer verifies" if number == 1 else f"{number} scorers verify"
    return KeyCheck(check, f"{words}; {verify} {verified:.3g} rollouts/s of {needed:.3g} needed", slow)


def _state(place: RunFolder, settings: CoordinatorConfig, spec: RunSpec) -> RunState | None:
    try:
        return status.decode(status.fetch_of(place, settings.web, spec.run))
    except Unreachable:
        return None


def _stored_bytes(place: RunFolder) -> int:
    """Return the bytes of stored groups; 0: no coordinator ran here. Raises `DatabaseFault`."""
    if not place.database.exists():
        return 0
    with Database.read(place.database) as database:
        return stored_bytes(database)


def _addresses(place: RunFolder, settings: CoordinatorConfig, state: RunState | None) -> Sequence[str]:
    """Return the addresses of the invite: of the running coordinator, else those of the settings."""
    if state is not None and state.invite:
        return Invite.from_text(state.invite).addresses
    _, chain, _, _ = setup.read_documents(place)
    return https_identity.reachable_addresses(settings, peer_id(keys.identity(chain)))
