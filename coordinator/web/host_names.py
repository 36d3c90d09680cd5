"""Checks of the Host header, against DNS rebinding and for CORS. Pure.

Rules
1. A request is answered if its Host is an IP address, localhost, the host listened on, or one of `web.names`. Any other
   name is refused: a web site could resolve its own name to this machine (DNS rebinding), and its scripts would then
   read the page and the invite as their own.
2. Scripts of other web sites may read an answer (CORS) only if the Host is one of `web.names` or a public IP address.
   On loopback and in private networks no other web site can read an answer.
3. A request without Host is answered by rule 1, and never readable by rule 2: browsers always send a Host.
"""

import ipaddress
from collections.abc import Collection
from typing import Final

_MOST_QUOTED_CHARACTERS: Final = 100  # characters of a name quoted in a refusal


def is_known_host(host: str | None, names: Collection[str]) -> bool:
    """Tell whether a request with this Host header is answered (rule 1). `names`: lower case."""
    if host is None:
        return True
    name = name_of(host)
    return _ip(name) is not None or name == "localhost" or name.endswith(".localhost") or name in names


def readable(host: str | None, names: Collection[str]) -> bool:
    """Tell whether other web sites may read the answer (rule 2). `names`: names of `web.names` alone, lower case."""
    if host is None:
        return False
    name = name_of(host)
    address = _ip(name)
    return name in names if address is None else address.is_global


def refusal(host: str) -> str:
    """Return the refusal for an unknown Host."""
    name = name_of(host)[:_MOST_QUOTED_CHARACTERS]
    return f"This page has no name {name!r}: its operator can add it to the setting web.names."


def name_of(host: str) -> str:
    """Return the host of a Host header, without port, brackets and trailing dot, in lower case."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None
