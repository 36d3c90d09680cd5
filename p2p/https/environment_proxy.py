"""Choose the proxy of HTTPS connections, by the variables that other programs obey too.

Rules
1. `HTTPS_PROXY` counts, else `ALL_PROXY`, in capitals or not; on macOS and in the absence of these the system's own.
   Hosts that `NO_PROXY` names are dialled directly.
2. A proxy without a scheme (`proxy.example:8080`) is one over HTTP, as for curl. One of another scheme (SOCKS, or TLS
   up to the proxy) is an error that names it: nothing goes another path than the owner's.
"""

import re
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from echo2.p2p.errors import Unreachable


def proxy_to(url: str) -> str | None:
    """Return the address of the proxy through which a URL is reached; None: directly. Raises `Unreachable` (rule 2)."""
    named = getproxies()
    text = (named.get("https") or named.get("all") or "").strip()
    if not text or proxy_bypass(urlsplit(url).netloc):
        return None
    variable = "HTTPS_PROXY" if named.get("https") else "ALL_PROXY"
    scheme, divider, _ = text.partition("://")
    if divider and scheme.lower() != "http":
        raise Unreachable(
            f"{variable} names a proxy of {scheme[:20]}, and echo2 takes only those of http: set HTTPS_PROXY to one, "
            "as http://proxy.example:8080, or name the coordinator's host in NO_PROXY"
        )
    address = text if divider else f"http://{text}"
    try:
        usable = bool(urlsplit(address).hostname) and urlsplit(address).port != 0 and not re.search(r"\s", text)
    except ValueError:
        usable = False
    if not usable:
        raise Unreachable(f"{variable} is no address of a proxy: write http://proxy.example:8080")
    return address
