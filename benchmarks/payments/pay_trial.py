"""The payments of `echo2-coord demo --pay`: from balances in the ledger to a provider that fails, and back.

Rules
1. Each step is the command that an operator, an approver or a node's owner types, as a process of its own; the screen
   shows it. The coordinator, the nodes and the provider run meanwhile.
2. Nothing is hurried but by settings that any run may have: epochs and heads of seconds, a least payment of a cent. An
   account that a node states counts after 24 hours and a fifth of the pay vests for as long, here as anywhere: so the
   operator's own file names the accounts, and what is not payable yet stays in the ledger.
3. After the run its ledger is exported, verified and replayed, and each node's receipts are verified, offline.
4. A demo is short of its aim if the provider moved money other than once per payment of the ledger, and not its amount,
   if a payment has no final answer, or if the ledger or a receipt does not verify.
"""

import os
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.payments import trial_provider
from echo2.coordinator.demo.demo_payments import PROVIDER, DemoPayments
from echo2.coordinator.demo.parent_death import ending_with_parent
from echo2.coordinator.demo.processes import ProcessFault
from echo2.coordinator.metrics.views import NodeRow
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, SentPayment
from echo2.runtime.checkout import checkout_command
from echo2.runtime.figures import figure
from echo2.runtime.python_command import module_command

PATIENCE: Final = 120.0
"""Seconds for one command, and for the nodes to tell which head of the ledger they hold."""
PASSES: Final = 3
"""Of `payout reconcile`: they stand for those of an hour and of days."""
LOOK: Final = 2.0
TERMS: Final = (
    "epochs and heads are of 6 s and the least payment is a cent, as any run may set them; a fifth of the pay vests "
    "over 24 hours, and that of a node's newest 40 RE is held back as long: so the plan has less than was earned"
)


@dataclass
class PayTrial(DemoPayments):
    """The payments of one demo. `folder`: of the demo. `env`: of its processes. `say`: shows a sentence."""

    folder: Path
    env: Mapping[str, str]
    say: Callable[[str], None] = print
    done: bool = False
    _peers: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """The provider's folder."""
        return self.folder / PROVIDER

    @property
    def home(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    def provider_argv(self) -> list[str]:
        """Make the provider's folder and its token; return the provider's command."""
        self.place.mkdir()
        token = self.place / trial_provider.TOKEN
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(16) + "\n")
        return checkout_command("benchmarks.payments.trial_provider", str(self.place))

    def sections(self) -> dict[str, dict[str, object]]:
        """Wait for the provider; return the sections of coordinator.toml that let the run pay over it. Raises
        `ProcessFault`."""
        until, url = time.monotonic() + PATIENCE, self.place / trial_provider.URL
        while not url.exists():
            if time.monotonic() > until:
                raise ProcessFault(f"no payout provider within {figure(PATIENCE)} s", [PROVIDER])
            time.sleep(0.1)
        credentials = str(self.place / trial_provider.TOKEN)
        payout = {"rail": "https", "url": url.read_text(), "credentials": credentials, "minimum": 1}
        return {"payout": payout, "ledger": {"head_seconds": 6}}

    def judge(self, payments: Sequence[SentPayment]) -> tuple[list[str], list[str]]:
        """Return what the provider's own record says, and a sentence per payment that it contradicts (rule 4).
        `payments`: those of the ledger."""
        rows = trial_provider.record(self.place)
        return provider_lines(rows, payments), provider_flaws(rows, payments)

    def give_role(self, now: int) -> None:
        """Make a payout key, and have a Root name it, by the functions of `echo2-coord keys`. Raises `LocalFault`."""
        from echo2.coordinator.database.run_folder import RunFolder
        from echo2.coordinator.run import carried_files, keys, keys_commands
        from echo2.coordinator.run.root_request import SetChange
        from echo2.p2p.identity import public_bytes
        from echo2.protocol.authority import RoleKeys

        safe = self.folder / "approver"
        safe.mkdir(mode=0o700)
        request = safe / "request"
        public = public_bytes(keys.make_next(safe, keys.PAYOUT, None))
        change = SetChange(payout=RoleKeys(keys=[public], threshold=1))
        keys_commands.export_root(self.home, request, change, now=now)
        keys_commands.sign(request, RunFolder(self.home).keys, secret=None, confirm=lambda lines: True)
        keys_commands.install(self.home, safe / f"request{carried_files.SIGNED_SUFFIX}", secret=None)

    def pay(self, nodes: Sequence[NodeRow], alive: Iterable[str]) -> None:
        """Pay out what is payable. `alive`: names of the nodes that run. Raises `ProcessFault`."""
        running = list(alive)
        self._peers = {node.name: node.id for node in nodes}
        self._state_accounts(nodes, running)
        self.say(TERMS)
        self._wait_for_nodes("plan", running)
        self._coord("payout", "plan", "--yes")
        plan = str(self.home / "payouts" / "1")
        self._show("echo2-coord", ["payout", "approve", plan, "--keys", str(self.folder / "approver"), "--yes"])
        self._wait_for_nodes("send", running)
        self._coord("payout", "send", "--yes")
        for _ in range(PASSES):
            self._coord("payout", "reconcile", "--yes")
        self._coord("payout", "report")
        self.done = True

    def look_back(self, nodes: Sequence[str]) -> None:
        """After the coordinator's end: verify receipts, and export, verify and replay the ledger (rule 3). `nodes`:
        names of those that ended in order. Raises `ProcessFault`."""
        for name in nodes:
            self._show("echo2-node", ["earnings", "--home", str(self.folder / name)], most=3)
            self._show("echo2-node", ["receipts", "verify", "--home", str(self.folder / name)])
        export = str(self.folder / "export")
        self._coord("ledger", "export", export)
        self._show("echo2-coord", ["ledger", "verify", export])
        self._show("echo2-coord", ["ledger", "replay", export], most=6)

    def _state_accounts(self, nodes: Sequence[NodeRow], running: Sequence[str]) -> None:
        """State accounts as nodes, which count in 24 hours, and write those of the operator (rule 2)."""
        for node in nodes:
            if node.accepted and node.name in running:
                home = str(self.folder / node.name)
                self._show("echo2-node", ["payout", "set", f"acct_{node.name}", "--home", home], most=2)
        self.say("these count after 24 hours: for today the operator writes the accounts into payouts/payees.json")
        path = self.home / "payouts" / "payees.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode({node.id: f"acct_{node.name}" for node in nodes if node.accepted}))

    def _wait_for_nodes(self, word: str, running: Sequence[str]) -> None:
        """Wait until nothing forbids `payout plan` or `payout send`: nodes have told that the ledger is the newest, and
        that they hold the plan's head. Raises `ProcessFault`."""
        until, told = time.monotonic() + PATIENCE, False
        while True:
            code, lines = self._run("echo2-coord", ["payout", word, "--home", str(self.home)])
            if code == 0:
                return
            if not told:
                self._print("echo2-coord", ["payout", word], lines)
                self.say("each node asks for heads once per minute; these ask now, as `receipts fetch` does")
            if told and time.monotonic() > until:
                raise ProcessFault(f"`payout {word}` was refused for {figure(PATIENCE)} s: {' '.join(lines)}")
            for name in [] if told else running:
                self._run("echo2-node", ["receipts", "fetch", "--home", str(self.folder / name)])
            told = True
            time.sleep(LOOK)

    def _coord(self, *words: str) -> None:
        self._show("echo2-coord", [*words, "--home", str(self.home)])

    def _show(self, program: str, words: Sequence[str], most: int = 40) -> None:
        """Run a command and show it. Raises `ProcessFault` where it fails."""
        code, lines = self._run(program, words)
        self._print(program, words, lines[:most] if code == 0 else lines)
        if code:
            raise ProcessFault(f"`{program} {' '.join(words[:2])}` ended with exit code {code}")

    def _print(self, program: str, words: Sequence[str], lines: Sequence[str]) -> None:
        short = [word.replace(str(self.folder), "DEMO") for word in words]
        self.say(f"$ {program} {' '.join(short)}")
        for text_line in lines:
            self.say(f"    {text_line.replace(str(self.folder), 'DEMO')}")

    def _run(self, program: str, words: Sequence[str]) -> tuple[int, list[str]]:
        module = "echo2.coordinator.cli" if program == "echo2-coord" else "echo2.node.cli"
        env = {**self.env, "SSL_CERT_FILE": str(self.place / "authority.pem")}
        try:
            ended = subprocess.run(
                ending_with_parent(module_command(module, *words)), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, timeout=PATIENCE, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ProcessFault(f"`{program} {' '.join(words[:2])}` took more than {figure(PATIENCE)} s") from error
        return ended.returncode, ended.stdout.decode(errors="replace").splitlines()


def provider_lines(rows: Sequence[Mapping[str, object]], payments: Sequence[SentPayment]) -> list[str]:
    """Return what the provider's own record says of its payments. `rows`: the record. `payments`: of the ledger."""
    calls = Counter(str(row["fault"]) for row in rows if row.get("fault"))
    moved = sum("transfer" in row for row in rows)
    faults = ", ".join(f"{count} {fault}" for fault, count in sorted(calls.items()))
    return [
        f"{'provider':<10}{moved} transfers for {len(payments)} payments, "
        f"{sum('returned' in row for row in rows)} returned; {sum('call' in row for row in rows)} calls, of which "
        f"{faults or 'none'} went wrong; {sum('webhook' in row for row in rows)} webhooks lost"
    ]


def provider_flaws(rows: Sequence[Mapping[str, object]], payments: Sequence[SentPayment]) -> list[str]:
    """Return a sentence per payment that the provider's record contradicts (rule 4)."""
    amounts: dict[str, list[object]] = {}
    for row in rows:
        if "transfer" in row:
            amounts.setdefault(str(row["transfer"]), []).append(row["amount"])
    flaws = [] if payments else ["nothing was paid out"]
    flaws += [
        f"the provider moved money for {key}, which the ledger has not" for key in amounts.keys() - _keys(payments)
    ]
    for one in payments:
        wanted = [one.sent.amount // UNITS_PER_HUNDREDTH]
        if amounts.get(one.key, []) != wanted:
            flaws.append(f"payment {one.key} of {wanted[0]} was moved as {amounts.get(one.key, [])}")
        if one.state == "sent" or one.question:
            flaws.append(f"payment {one.key} has no final answer")
    return flaws


def _keys(payments: Iterable[SentPayment]) -> set[str]:
    return {one.key for one in payments}
