"""Accounts that could do harm are refused with a clear word."""

import pytest

from echo2.coordinator.rails import account_text
from echo2.coordinator.rails.rail import BadAccount

GOOD_IBAN = "DE89370400440532013000"
BAD = {
    "nothing": ("", "empty"),
    "10 kB": ("a" * 10_240, "10240 characters"),
    "a new line": ("alice\nbob", "cannot be printed"),
    "a leading new line": ("\n=1+1", "cannot be printed"),
    "an escape": ("\x1b[2Jalice", "cannot be printed"),
    "text turned round": ("alice\u202ebob", "cannot be printed"),
    "a leading blank": (" =1+1", "blank"),
    "a formula": ("=HYPERLINK(1)", "formula"),
    "a formula by plus": ("+1+1", "formula"),
    "a formula by minus": ("-1+1", "formula"),
    "a formula by at": ("@SUM(A1)", "formula"),
}


@pytest.mark.parametrize(("account", "word"), BAD.values(), ids=BAD.keys())
def test_a_bad_account_is_refused_and_named(account: str, word: str) -> None:
    with pytest.raises(BadAccount) as caught:
        account_text.check(account)
    assert word in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "account", ["alice@example.org", "acct_1Nv0FGQ9RKHgCVdK", "0x52908400098527886E0F7030069857D2"]
)
def test_usual_accounts_are_taken(account: str) -> None:
    account_text.check(account)


def test_a_bank_account_is_an_iban_and_a_name() -> None:
    assert account_text.split_bank(f"{GOOD_IBAN} Alice O'Hara") == (GOOD_IBAN, "Alice O'Hara")


BAD_BANK = {
    "a wrong check digit": "DE88370400440532013000 Alice",
    "no name": GOOD_IBAN,
    "a blank name": f"{GOOD_IBAN}   ",
    "blanks within": "DE89 3704 0044 0532 0130 00 Alice",
    "a name beyond SEPA's characters": f"{GOOD_IBAN} Alice <x>",
    "a long name": f"{GOOD_IBAN} {'a' * 71}",
    "small letters": f"{GOOD_IBAN.lower()} Alice",
}


@pytest.mark.parametrize("account", BAD_BANK.values(), ids=BAD_BANK.keys())
def test_another_bank_account_is_refused(account: str) -> None:
    with pytest.raises(BadAccount):
        account_text.check_bank(account)
