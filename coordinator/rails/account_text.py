"""Accounts as people write them, refused where a rail cannot pay to them."""

from echo2.coordinator.rails.rail import BadAccount
from echo2.protocol.payee_accounts import account_fault


def check(account: str) -> None:
    """Check an account as any rail takes it (protocol/payee_accounts.py). Raises `BadAccount`."""
    if fault := account_fault(account):
        raise BadAccount(fault)
