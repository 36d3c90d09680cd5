"""Under which names the page is asked for, and which of them other web sites may use. Pure.

Rules
1. A request is answered if its Host is an IP address, localhost, the host that is listened on, or one of `web.names`.
   Any other name is refused: a web site can have its own name resolve to this machine (DNS rebinding), and its scripts
   would then read the page, with the invite, as their own.
2. Scripts of other web sites may read an answer (CORS) only if its request came to a public place: one of `web.names`,
   or a public IP address. On loopback and in private networks no web site can read anything.
3. A request without Host is answered as by rule 1 and never as by rule 2: browsers always send it.
"""

import ipaddress
from collections.abc import Collection
from typing import Final

_MOST: Final = 100  # characters of a name that is told back


def known(host: str | None, names: Collection[str]) -> bool:
    """Whether a request with this Host header is answered (rule 1). `names`: lower case."""
    if host is None:
        return True
    name = name_of(host)
    return _ip(name) is not None or name == "localhost" or name.endswith(".localhost") or name in names


def readable(host: str | None, names: Collection[str]) -> bool:
    """Whether other web sites may read the answer (rule 2). `names`: of `web.names` alone, lower case."""
    if host is None:
        return False
    name = name_of(host)
    address = _ip(name)
    return name in names if address is None else address.is_global


def refusal(host: str) -> str:
    """Return the sentence for a name that is not known."""
    return f"This page has no name {name_of(host)[:_MOST]!r}: its operator can add one to the setting web.names."


def name_of(host: str) -> str:
    """Return the host of a Host header, without port, brackets and a last dot, in lower case."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None
