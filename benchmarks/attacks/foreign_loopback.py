"""Treat the loopback addresses of this machine as public ones, so that limits of subnets hold between its processes."""

from dataclasses import replace
from typing import Any

from echo2.coordinator import serving


def foreign(ip: str) -> str | None:
    """Return the subnet of a loopback address as if it were public, for `PeerLimits.subnet_of`; None for other
    addresses and 127.0.0.0/24, which count as private."""
    net = ip.rpartition(".")[0]
    return f"{net}.0/24" if net.startswith("127.") and net != "127.0.0" else None


def with_foreign_loopback() -> None:
    """Make the daemon of this process treat loopback addresses as public ones (`foreign`)."""
    names = vars(serving)
    real = names["connection_limits"]

    def limits(*arguments: Any) -> Any:
        return tuple(replace(one, subnet_of=foreign) if hasattr(one, "subnet_of") else one for one in real(*arguments))

    names["connection_limits"] = limits
