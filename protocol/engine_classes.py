"""Engine classes, "<engine>/<number format>/<device kind>": the unit in which a run admits and calibrates engines."""

from collections.abc import Sequence


def admits(engine_class: str, admitted: Sequence[str]) -> bool:
    """Tell whether a class begins with one of the prefixes of classes, compared part by part."""
    return any(f"{engine_class}/".startswith(f"{one.rstrip('/')}/") for one in admitted)


def parts(engine_class: str) -> list[str]:
    """Return engine, number format and device kind, as far as a class, or a prefix of classes, names them."""
    return engine_class.rstrip("/").split("/")
