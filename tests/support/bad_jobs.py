"""Jobs that no engine can generate, as changes of a good one."""

from typing import Any, Final

BAD_JOBS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "an empty prompt": ({"prompt": []}, "needs a prompt"),
    "a token outside the model": ({"prompt": [5, 10_000]}, "outside the model's vocabulary"),
    "a negative token": ({"prompt": [-1]}, "outside the model's vocabulary"),
    "a limit of nothing": ({"limit": 0}, "limit of one token"),
    "a seed of another length": ({"seeds": [b"short"]}, "16 bytes"),
    "a temperature of nothing": ({"temperature": 0}, "from 500 to 2000 thousandths, not 0"),
    "a temperature above the bound": ({"temperature": 2001}, "from 500 to 2000 thousandths, not 2001"),
}
"""Fault -> (changes, a part of the sentence that refuses it)."""
