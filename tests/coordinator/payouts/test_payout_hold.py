"""Payments wait after a restore until the operator has compared the provider's statement with the ledger."""

from pathlib import Path

import pytest

from echo2.coordinator.payouts.plan_files import PayoutFolder
from echo2.runtime.errors import LocalFault


def test_each_restore_holds_payments_until_the_operator_has_compared_that_one(tmp_path: Path) -> None:
    folder = PayoutFolder(tmp_path)
    folder.path.mkdir(mode=0o700)
    folder.check_restored(None)
    with pytest.raises(LocalFault, match="payout restored"):
        folder.check_restored(5)
    folder.write_restored(5, "no payment since Monday")
    folder.check_restored(5)
    with pytest.raises(LocalFault, match="restored from a copy"):
        folder.check_restored(6)
