"""The settings of payments in money. docs/money.md explains them. The needs of each rail stand in
coordinator/rails/registry.py."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from echo2.coordinator.settings.config_section import Section


class PayoutSection(Section):
    """Paying money out, by `echo2-coord payout`. Points need none of this: they are credited at the verdict."""

    rail: Annotated[
        Literal["points", "csv", "command", "bank", "https"],
        Field(
            description="The way by which money leaves: points (none does), csv and bank (files that you hand on; bank "
            "is ISO 20022 pain.001), command (a program of yours), https (a payout provider)."
        ),
    ] = "points"
    currency: Annotated[
        Literal["USD", "EUR", "GBP", "CHF"],
        Field(description="The currency of payments. The ledger's unit of money is 10^-9 of it."),
    ] = "USD"
    minimum: Annotated[
        int,
        Field(ge=1, le=10**9, description="Least payment, in hundredths of the currency; less waits in the ledger."),
    ] = 500
    day_limit: Annotated[
        int, Field(ge=1, le=10**12, description="Most that is sent within 24 hours, in hundredths of the currency.")
    ] = 100_000
    node_limit: Annotated[
        int, Field(ge=1, le=10**12, description="The same per node; a larger balance is paid in parts.")
    ] = 10_000
    payee_fee: Annotated[
        int,
        Field(
            ge=0, le=10**9,
            description="The part of a payment that the payee's side keeps, as far as you know, in hundredths of the "
            "currency. Node owners are told it before they join. The program pays out whole amounts whatever it is.",
        ),
    ] = 0  # fmt: skip
    url: Annotated[str, Field(max_length=500, description="Base address of the rail https, as in https://host/v1.")] = (
        ""
    )
    credentials: Annotated[
        str, Field(max_length=1000, description="The rail https: path of a file of mode 0600 with its bearer token.")
    ] = ""
    command: Annotated[str, Field(max_length=1000, description="The rail command: absolute path of the program.")] = ""
    debtor_name: Annotated[str, Field(max_length=70, description="The rail bank: holder of the paying account.")] = ""
    debtor_iban: Annotated[str, Field(max_length=34, description="The rail bank: IBAN of the paying account.")] = ""
    debtor_bic: Annotated[str, Field(max_length=11, description="The rail bank: BIC of its bank, where needed.")] = ""
    resend_hours: Annotated[
        int,
        Field(
            ge=0, le=720,
            description="The rails https and command: hours for which an idempotency key is recognised. Older "
            "payments need your decision, and are not sent again. 0: none is sent again.",
        ),
    ] = 20  # fmt: skip

    @model_validator(mode="after")
    def _pays_something(self) -> Self:
        if not self.minimum <= self.node_limit <= self.day_limit:
            raise ValueError(
                f"payout.minimum is {self.minimum}, payout.node_limit {self.node_limit} and payout.day_limit "
                f"{self.day_limit}: each can be at most the next one, or some payments are never made"
            )
        return self
