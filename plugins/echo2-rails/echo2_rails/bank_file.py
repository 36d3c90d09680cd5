"""Payments as a credit transfer initiation of ISO 20022, pain.001.001.09, which banks take as an upload.

Rules
1. A batch is one message with one block of payments from the operator's account. `MsgId` follows from the operator's
   IBAN, the batch's time and its number, so a bank recognises a file that is uploaded twice.
2. `EndToEndId` is the payment's idempotency key; the bank's statement repeats it.
3. `NbOfTxs` and `CtrlSum` state number and sum of the payments; amounts have two decimals, computed from integers.
4. The execution date is the day (UTC) on which the batch was begun.
"""

import hashlib
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import Final, NamedTuple

from echo2.coordinator.rails import minor_units
from echo2.coordinator.rails.file_rail import FileFormat, FileRow, PaymentBatch
from echo2.coordinator.rails.rail import BadAccount
from echo2.coordinator.rails.rail_kind import RailKind
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.errors import LocalFault
from echo2_rails import bank_account

SPACE: Final = "urn:iso:std:iso:20022:tech:xsd:pain.001.001.09"
_BIC: Final = re.compile(r"[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?")


class Debtor(NamedTuple):
    """The operator's account. `bic`: BIC of its bank; empty: the bank knows by the IBAN."""

    name: str
    iban: str
    bic: str = ""


def bank_format(debtor: Debtor, currency: str) -> FileFormat:
    """Return the format of a bank's files. Raises `LocalFault` for an account of the operator that is none."""
    try:
        bank_account.split(f"{debtor.iban} {debtor.name}")
    except BadAccount as error:
        raise LocalFault(f"payout.debtor_iban and payout.debtor_name: {error}") from error
    if debtor.bic and not _BIC.fullmatch(debtor.bic):
        raise LocalFault(f"payout.debtor_bic {debtor.bic!r} is no BIC of 8 or 11 letters and digits")
    return FileFormat("xml", lambda batch: _message(batch, debtor, currency), bank_account.check)


def _message(batch: PaymentBatch, debtor: Debtor, currency: str) -> bytes:
    name = hashlib.sha256(f"{debtor.iban} {batch.at} {batch.number}".encode()).hexdigest()[:24]
    began = datetime.fromtimestamp(batch.at / 1000, UTC)
    number, total = str(len(batch.rows)), minor_units.decimal(sum(row.amount for row in batch.rows))
    document = ET.Element("Document", xmlns=SPACE)
    message = ET.SubElement(document, "CstmrCdtTrfInitn")
    _put(message, "GrpHdr/MsgId", name)
    header = message[0]
    _put(header, "CreDtTm", began.strftime("%Y-%m-%dT%H:%M:%SZ"))
    _put(header, "NbOfTxs", number)
    _put(header, "CtrlSum", total)
    _put(header, "InitgPty/Nm", debtor.name)
    block = ET.SubElement(message, "PmtInf")
    _put(block, "PmtInfId", f"{name}-1")
    _put(block, "PmtMtd", "TRF")
    _put(block, "NbOfTxs", number)
    _put(block, "CtrlSum", total)
    _put(block, "ReqdExctnDt/Dt", began.strftime("%Y-%m-%d"))
    _put(block, "Dbtr/Nm", debtor.name)
    _put(block, "DbtrAcct/Id/IBAN", debtor.iban)
    _put(block, *_bank_of(debtor))
    for row in batch.rows:
        _transfer(block, row, currency)
    ET.indent(document)
    written: bytes = ET.tostring(document, encoding="UTF-8", xml_declaration=True)
    return written + b"\n"


def _bank_of(debtor: Debtor) -> tuple[str, str]:
    if debtor.bic:
        return "DbtrAgt/FinInstnId/BICFI", debtor.bic
    return "DbtrAgt/FinInstnId/Othr/Id", "NOTPROVIDED"


def _transfer(block: ET.Element, row: FileRow, currency: str) -> None:
    iban, name = bank_account.split(row.account)
    one = ET.SubElement(block, "CdtTrfTxInf")
    _put(one, "PmtId/EndToEndId", row.key)
    _put(one, "Amt/InstdAmt", minor_units.decimal(row.amount)).set("Ccy", currency)
    _put(one, "Cdtr/Nm", name)
    _put(one, "CdtrAcct/Id/IBAN", iban)


def _put(parent: ET.Element, path: str, text: str) -> ET.Element:
    """Add nested elements, the last one with a text; return it."""
    element = parent
    for tag in path.split("/"):
        element = ET.SubElement(element, tag)
    element.text = text
    return element


def _format(settings: PayoutSection) -> FileFormat:
    return bank_format(Debtor(settings.debtor_name, settings.debtor_iban, settings.debtor_bic), settings.currency)


BANK_RAIL: Final = RailKind(
    file_format=_format,
    needs={"debtor_name": "the holder of the paying account", "debtor_iban": "its IBAN, without blanks"},
    target=lambda settings: settings.debtor_iban,
    check=_format,
    check_account=bank_account.check,
)
