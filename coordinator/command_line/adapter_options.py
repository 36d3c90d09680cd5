"""The options of an adapter, for `init` and `demo`."""

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from echo2.runtime.errors import LocalFault

if TYPE_CHECKING:
    from echo2.weights.lora.adapter_folder import AdapterOrder
    from echo2.weights.lora.frozen_base import BaseFormat

LoraRank = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Train an adapter of this rank, the model frozen.", show_default="whole model"),
]
BaseFormatOption = Annotated[
    Literal["bfloat16", "q8_0", "q4_0"], typer.Option("--base-format", help="The frozen model's, with --lora-rank.")
]


def adapter_of(rank: int | None, alpha: float | None, targets: str | None, base: str) -> "AdapterOrder | None":
    """Return the adapter that `init` is to make; None: none. Raises `LocalFault` for options that need --lora-rank."""
    from echo2.weights.lora.adapter_folder import AdapterOrder

    if rank is None:
        if alpha is not None or targets is not None or base != "bfloat16":
            raise LocalFault("--lora-alpha, --lora-targets and --base-format describe an adapter: add --lora-rank")
        return None
    chosen = None if targets is None else [name for name in targets.split(",") if name]
    return AdapterOrder(rank, alpha if alpha is not None else 2.0 * rank, chosen, cast("BaseFormat", base))
