"""Treat the loopback addresses of this machine as public ones, so that limits of subnets hold between its processes:
ECHO2_STAND_INS=subnets=benchmarks.attacks.foreign_loopback (runtime/stand_ins.py)."""

from typing import Final

MODULE: Final = "benchmarks.attacks.foreign_loopback"


def subnet_of(ip: str) -> str | None:
    """Return the subnet of a loopback address as if it were public; None for other addresses and 127.0.0.0/24, which
    count as private."""
    net = ip.rpartition(".")[0]
    return f"{net}.0/24" if net.startswith("127.") and net != "127.0.0" else None
