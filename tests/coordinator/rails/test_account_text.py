"""Accounts that could do harm are refused with a clear word."""

import pytest

from echo2.coordinator.rails import account_text
from echo2.coordinator.rails.rail import BadAccount

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
