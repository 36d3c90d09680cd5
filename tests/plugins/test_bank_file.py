"""A bank's files: number, sum and every payment of a message, and accounts that a bank takes."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from echo2.coordinator.rails.file_rail import FileRail
from echo2.coordinator.rails.rail import BadAccount
from echo2.runtime.errors import LocalFault
from echo2_rails import bank_account
from echo2_rails.bank_file import SPACE, Debtor, bank_format

NOW = 1_767_225_600_000  # 2026-01-01
GOOD_IBAN = "DE89370400440532013000"
ALICE = f"{GOOD_IBAN} Alice & Co"
DEBTOR = Debtor("Operator", "GB82WEST12345698765432", "DEUTDEFF")


async def test_the_banks_file_states_number_and_sum_and_every_payment(tmp_path: Path) -> None:
    rail = FileRail(tmp_path, bank_format(DEBTOR, "EUR"), lambda: NOW)
    key = "0123456789abcdef0123456789abcdef"
    await rail.send(key, "DE89370400440532013000 Alice + Co", 123_456)
    await rail.send("b" * 32, "GB82WEST12345698765432 Bob", 1)
    rail.close()
    root = ET.fromstring((tmp_path / "payments-1.xml").read_bytes())
    space = {"": SPACE}

    def text(path: str) -> str | None:
        return root.findtext(path, namespaces=space)

    assert text("CstmrCdtTrfInitn/GrpHdr/NbOfTxs") == text("CstmrCdtTrfInitn/PmtInf/NbOfTxs") == "2"
    assert text("CstmrCdtTrfInitn/GrpHdr/CtrlSum") == text("CstmrCdtTrfInitn/PmtInf/CtrlSum") == "1234.57"
    assert text("CstmrCdtTrfInitn/PmtInf/ReqdExctnDt/Dt") == "2026-01-01"
    one = "CstmrCdtTrfInitn/PmtInf/CdtTrfTxInf"
    assert text(f"{one}/PmtId/EndToEndId") == key
    assert text(f"{one}/Amt/InstdAmt") == "1234.56"
    assert text(f"{one}/CdtrAcct/Id/IBAN") == "DE89370400440532013000"
    assert text(f"{one}/Cdtr/Nm") == "Alice + Co"
    sent = (tmp_path / "payments-1.xml").read_bytes()
    (tmp_path / "payments-1.xml").unlink()
    FileRail(tmp_path, bank_format(DEBTOR, "EUR"), lambda: NOW + 5).close()
    assert (tmp_path / "payments-1.xml").read_bytes() == sent, "a bank knows the message again"


async def test_the_bank_rail_refuses_another_account(tmp_path: Path) -> None:
    rail = FileRail(tmp_path, bank_format(DEBTOR, "EUR"), lambda: NOW)
    for account in ("alice@example.org", ALICE):
        with pytest.raises(BadAccount):
            await rail.quote(account, 1)
        with pytest.raises(BadAccount):
            await rail.send("k", account, 1)


def test_the_operators_own_account_is_checked() -> None:
    with pytest.raises(LocalFault):
        bank_format(Debtor("", ""), "EUR")
    with pytest.raises(LocalFault, match="BIC"):
        bank_format(DEBTOR._replace(bic="x"), "EUR")


def test_a_bank_account_is_an_iban_and_a_name() -> None:
    assert bank_account.split(f"{GOOD_IBAN} Alice O'Hara") == (GOOD_IBAN, "Alice O'Hara")


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
        bank_account.check(account)
