"""Amounts of the ledger, 10^-9 of a currency, as exact decimal text. Pure."""

NANO = 10**9


def money(amount: int) -> str:
    """Return an amount as a decimal number without superfluous zeros, with two decimals at least."""
    whole, part = divmod(abs(amount), NANO)
    decimals = f"{part:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 else ''}{whole}.{decimals}"
