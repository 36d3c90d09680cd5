"""Exit codes of both commands, so that service managers and scripts can react without reading text."""

from enum import IntEnum


class Exit(IntEnum):
    """Why a command ended. A service manager should not restart after REFUSED, CONFIG and TRUST: only a person
    can help."""

    OK = 0
    USAGE = 2
    UNREACHABLE = 69
    """The coordinator or a model hub did not answer, or no daemon runs in the folder that a command names."""
    INTERNAL = 70
    """A fault of this program."""
    TEMPORARY = 75
    """Worth another try: another daemon runs here, or the disk is full."""
    REFUSED = 77
    """The coordinator wants no work of this node: banned, or too old a version."""
    CONFIG = 78
    """A setting, an invite or a key file must be put right."""
    NO_DEVICE = 80
    """No device can hold and run the model."""
    TRUST = 81
    """A signature, a rollback or an expired Root: an attack, or the operator must act."""
    INTERRUPTED = 130
    """Ctrl-C, after a clean drain."""
    CLOSED_PIPE = 141
    """Standard output was closed by its reader, as by `| head`: no fault (runtime/closed_pipe.py)."""
