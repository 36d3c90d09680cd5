"""`echo2-node logs`: the log of the node, from the file in its home, for people or as it is.

The daemon writes the file beside what it sends to stderr (node/main.py), so a service's log is here too.
"""

import json
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

from echo2.node.errors import BadConfig

LOG_FILE: Final = "node.log"
LOOK_AGAIN_SECONDS: Final = 0.5
MOST_TAIL_BYTES: Final = 4 << 20
"""Bytes of the file's end that are read for its last lines."""


def last_lines(home: Path, most: int) -> list[str]:
    """Return the last lines, as the file has them. Raises `BadConfig` where there is no log."""
    path = home / LOG_FILE
    try:
        with path.open("rb") as file:
            begin = max(0, path.stat().st_size - MOST_TAIL_BYTES)
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise BadConfig(
            f"there is no log in {home}: a node writes it once it runs; name its folder by --home"
        ) from None
    except OSError as error:
        raise BadConfig(f"{path} cannot be read ({error.strerror}): run the command as the node's user") from error
    return lines[1 if begin else 0 :][-most:]


def follow(home: Path, wait: Callable[[float], None] = time.sleep) -> Generator[str, None, None]:
    """Yield lines as they are added, also to the file that replaces a full one; empty ones are no news yet. `wait`:
    sleeps."""
    path, part = home / LOG_FILE, ""
    file = path.open(encoding="utf-8", errors="replace")
    try:
        file.seek(0, os.SEEK_END)
        while True:
            part += file.readline()
            if part.endswith("\n"):
                yield part.rstrip("\n")
                part = ""
                continue
            wait(LOOK_AGAIN_SECONDS)
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file, part = path.open(encoding="utf-8", errors="replace"), ""
    finally:
        file.close()


def readable(text: str) -> str:
    """Return a line of the file for people: time, level, event, fields."""
    try:
        event = json.loads(text)
    except ValueError:
        return text
    if not isinstance(event, dict):
        return text
    fields = {key: value for key, value in event.items() if key not in ("timestamp", "level", "event", "exception")}
    words = "".join(f" {key}={_value_text(value)}" for key, value in fields.items())
    return f"{str(event.get('timestamp', ''))[:19]} {event.get('level', ''):<7} {event.get('event', '')}{words}"


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text) if " " in text else text
