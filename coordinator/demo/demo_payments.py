"""The payments of a demo, as the demo sees them; `benchmarks/payments`, in a checkout of echo2, has what makes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from echo2.coordinator.metrics.views import NodeRow
from echo2.ledger.payout_facts import SentPayment
from echo2.runtime.checkout import load_from_checkout

EPOCHS: Final = 12
"""Closed epochs after which the run pays out."""
PROVIDER: Final = "provider"
"""Name of the provider's process."""


class DemoPayments(Protocol):
    """The payments of one demo. `say`: shows a sentence. `done`: whether the run has paid out."""

    say: Callable[[str], None]
    done: bool

    def provider_argv(self) -> list[str]:
        """Make the provider's folder; return the provider's command."""

    def sections(self) -> dict[str, dict[str, object]]:
        """Wait for the provider; return the sections of coordinator.toml that let the run pay over it. Raises
        `ProcessFault`."""

    def give_role(self, now: int) -> None:
        """Make a payout key, and have a Root name it. Raises `LocalFault`."""

    def pay(self, nodes: Sequence[NodeRow], alive: Iterable[str]) -> None:
        """Pay out what is payable. `alive`: names of the nodes that run. Raises `ProcessFault`."""

    def look_back(self, nodes: Sequence[str]) -> None:
        """Verify receipts and ledger after the coordinator's end. `nodes`: names of those that ended in order. Raises
        `ProcessFault`."""

    def judge(self, payments: Sequence[SentPayment]) -> tuple[list[str], list[str]]:
        """Return what the provider's own record says of its payments, and what is wrong with them."""


MakePayments = Callable[[Path, Mapping[str, str]], DemoPayments]
"""From the demo's folder and the environment of its processes."""


def load_payments() -> MakePayments:
    """Return what makes the payments of a demo. Raises `LocalFault`."""
    make: MakePayments = load_from_checkout("benchmarks.payments.pay_trial", "echo2-coord demo --pay").PayTrial
    return make
