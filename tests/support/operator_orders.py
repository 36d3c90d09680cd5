"""The functions behind the operator's commands, of which a test gives some."""

from typing import Any

from echo2.coordinator.training.operator_socket import Orders
from echo2.runtime.errors import LocalFault


def orders(**given: Any) -> Orders:
    """Return orders; those that are not given are refused."""

    def refuse(*asked: Any) -> Any:
        raise LocalFault(f"no order here takes {asked}")

    return Orders(**(dict.fromkeys(Orders._fields, refuse) | given))
