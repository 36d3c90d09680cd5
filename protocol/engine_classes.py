"""Engine classes, "<engine>/<number format>/<device kind>": the unit in which a run admits and calibrates engines."""


def parts(engine_class: str) -> list[str]:
    """Return engine, number format and device kind, as far as a class, or a prefix of classes, names them."""
    return engine_class.rstrip("/").split("/")
