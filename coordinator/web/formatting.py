"""Formatting of numbers for people. Pure; used as template filters."""

import html
import re
from decimal import ROUND_HALF_EVEN, Decimal

_COMMAND = re.compile(r"`([^`]+)`")
_PROJECT = re.compile(r"@ git\+(https://[\w.-]+(?::\d+)?(?:/[\w.~-]+)+)")


def count(value: float) -> str:
    """Format a count: 1234567 -> "1,234,567"; from 10 million on in millions (M) or thousand millions (G)."""
    if abs(value) < 10_000_000:
        return f"{value:,.0f}"
    return f"{value / 1e6:,.1f} M" if abs(value) < 1e9 else f"{value / 1e9:,.1f} G"


def short(value: float) -> str:
    """Format a number by three digits and a suffix: 567000 -> "567 k", 999600 -> "1 M"."""
    for limit, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def amount(units: int) -> str:
    """Format an amount of the ledger, 10^-9 of the currency, rounded: "1,234.50", "0.01235", "0.00001235"."""
    value = Decimal(units).scaleb(-9)
    if not value or abs(value) >= 1:
        return f"{value:,.2f}"
    finest = Decimal(1).scaleb(max(-9, value.adjusted() - 3))
    text = f"{value.quantize(finest, ROUND_HALF_EVEN):f}".rstrip("0")
    return text if len(text.partition(".")[2]) > 1 else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Format seconds by at most two units: "4.2 s", "3 min 10 s", "2 d 4 h"."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    left = round(seconds)
    parts = []
    for name, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        whole, left = divmod(left, length)
        if whole:
            parts.append(f"{whole} {name}")
        elif parts:
            break
    return " ".join(parts[:2])


def moment(seconds: float) -> str:
    """Format seconds with fractions of a second: "85 ms", "1.24 s", "3 min 10 s"."""
    if seconds < 0.9995:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    return f"{seconds:.3g} s" if seconds < 10 else duration(seconds)


def ago(seconds: float) -> str:
    """Format an age in seconds: "3 min ago"; "now" below 5 s."""
    return "now" if seconds < 5 else f"{duration(seconds).split(' ')[0]} {duration(seconds).split(' ')[1]} ago"


def times(ratio: float) -> str:
    """Format a ratio: 54.3 -> "54 ×"."""
    return f"{ratio:,.1f} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def points(difference: float) -> str:
    """Format a difference of shares in percentage points: 0.31 -> "+31 points"."""
    return f"{100 * difference:+.0f} points".replace("-", "−")


def clip_identity(identity: str) -> str:
    """Shorten a peer id to its first four and last six characters."""
    return identity if len(identity) <= 12 else f"{identity[:4]}…{identity[-6:]}"


def project_address(command: str) -> str:
    """Return the address of the git repository from which a command installs; empty: it names none."""
    named = _PROJECT.search(command)
    return "" if named is None else named[1].removesuffix(".git")


_LIMITS = {
    "connections": "the limit on all connections was reached (network.connections)",
    "subnet": "one public subnet was at its limit (network.subnet_connections), or connected too often",
    "reserved": "all other places were kept for nodes with accepted work (network.connections)",
    "proxy": "a PROXY header was missing, malformed or from elsewhere (network.trusted_proxies)",
    "address": "one address had half of its subnet's limit of handshakes, or connected too often",
    "silent": "the oldest handshake was dropped for a new connection",
    "streams": "the one that had most streams or unfinished requests open gave way",
    "banned": "the peer had broken the protocol",
    "https": "the limit on all HTTPS connections was reached (https.connections)",
    "https-address": "one address was at its limit over HTTPS (https.address_connections)",
    "web": "the limit on all connections with the page was reached (web.connections)",
    "web-address": "one address was at its limit with the page (web.address_connections)",
}


def refused_limit(limit: str) -> str:
    """Return the sentence for a limit on connections, by its code, with the setting to change."""
    return _LIMITS.get(limit, limit)


def mark_commands(sentence: str) -> str:
    """Return a sentence with commands in backquotes as HTML: "`a` <b>" -> "<code>a</code> &lt;b&gt;"."""
    return _COMMAND.sub(r"<code>\1</code>", html.escape(sentence))
