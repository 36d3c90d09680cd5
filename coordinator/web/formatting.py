"""Numbers as people read them. Pure; used as template filters."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


def count(value: float) -> str:
    """1234567 -> "1,234,567"; from ten million on in thousands or millions."""
    if abs(value) < 10_000_000:
        return f"{value:,.0f}"
    return f"{value / 1e6:,.1f} M" if abs(value) < 1e9 else f"{value / 1e9:,.1f} G"


def short(value: float) -> str:
    """Three digits and a suffix: 567000 -> "567 k"."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def size(value: float) -> str:
    """Bytes, in powers of 1000."""
    power = 0
    while abs(value) >= 999.5 and power < len(_UNITS) - 1:
        value /= 1000
        power += 1
    return f"{value:.3g} {_UNITS[power]}"


def duration(seconds: float) -> str:
    """The two greatest units that tell something: "4.2 s", "3 min 10 s", "2 d 4 h"."""
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
    """A length of time where fractions of a second tell something: "85 ms", "1.24 s", "3 min 10 s"."""
    if seconds < 0.9995:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    return f"{seconds:.3g} s" if seconds < 10 else duration(seconds)


def ago(seconds: float) -> str:
    """How long since: "now" within five seconds."""
    return "now" if seconds < 5 else f"{duration(seconds).split(' ')[0]} {duration(seconds).split(' ')[1]} ago"


def times(ratio: float) -> str:
    """How many times smaller: 54.3 -> "54 x"."""
    return f"{ratio:,.1f} ×" if ratio < 10 else f"{ratio:,.0f} ×"


def points(difference: float) -> str:
    """A difference of shares in percentage points: 0.31 -> "+31 points"."""
    return f"{100 * difference:+.0f} points".replace("-", "−")


def clipped(identity: str) -> str:
    """A peer id, as short as people compare it."""
    return identity if len(identity) <= 12 else f"{identity[:4]}…{identity[-6:]}"


_LIMITS = {
    "connections": "all places were taken (network.connections)",
    "subnet": "one public subnet had its share (network.subnet_connections), or connected too often",
    "address": "one address had half of its subnet's share of handshakes, or connected too often",
    "silent": "a handshake took longest when others came",
    "banned": "the peer had broken the protocol",
    "https": "all places over HTTPS were taken (https.connections)",
    "https-address": "one address had its share over HTTPS (https.address_connections)",
    "web": "all places with the page were taken (web.connections)",
    "web-address": "one address had its share with the page (web.address_connections)",
}


def refused_limit(limit: str) -> str:
    """The sentence for the word under which a refused connection is counted, with the setting to change."""
    return _LIMITS.get(limit, limit)
