"""Write one key of a settings file: the user's, or a home's own (node/config.py, rule 1).

Rules
1. A key that stands in the file changes in place; a new one is added. All other lines stay as they are. The new file
   is whole or absent (runtime/files.py).
2. Nothing is written unless the whole file is valid with the new value.
3. A variable or a file that cannot be read is named, as at any start.
4. A key that belongs to one node (`OF_A_NODE`), and any key with `--home`, is written to the home's file. It is
   removed from there, or from the user's file where the home's has none.
"""

import errno
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from echo2.node.config import OF_A_NODE, NodeConfig, check_key, home_file, load_config, read_file, value_of, values_of
from echo2.node.errors import BadConfig
from echo2.node.home_place import config_path
from echo2.runtime.files import writing
from echo2.runtime.settings import DEFAULT_ORIGIN, holds, means_removal
from echo2.runtime.settings_file import text_of, with_value


class WrittenSetting(NamedTuple):
    """A key after it was written. `path`: the file. `home`: whose own file it is; None: it is the user's. `origin`:
    where the value in force comes from."""

    key: str
    config: NodeConfig
    path: Path
    home: Path | None
    origin: str

    def lines(self) -> list[str]:
        """Return what was written where, for the owner."""
        value = value_of(self.config, self.key)
        whose = "all nodes of this user without one of their own" if self.home is None else f"the node in {self.home}"
        shown = text_of("(set)" if self.key == "invite" and value else value)
        rows = [f"{self.key} = {shown}", f"{self.path}: for {whose}"]
        if value is not None and self.origin not in (DEFAULT_ORIGIN, str(self.path)):
            rows.append(f"in force here is the value from {self.origin}")
        return rows


def write_setting(key: str, text: str | None, environ: Mapping[str, str], home: Path | None) -> WrittenSetting:
    """Write a key to the file that it belongs to, or remove it there (rule 4). `text`: text as a flag or a variable has
    it; None: remove it. `home`: home of the flag; None: it was not given. Raises `SettingsFault`, `BadConfig`,
    `DiskFull`."""
    check_key(key)
    at = load_config({"home": home}, environ)[0].home
    own = at if key != "home" and (key in OF_A_NODE or home is not None) else None
    if text is None and own is not None and not holds(read_file(home_file(own)), key):
        own = None
    set_key(key, text, environ, own)
    config, origins = load_config({"home": home}, environ)
    return WrittenSetting(key, config, _path(environ, own), own, origins.get(key, DEFAULT_ORIGIN))


def removal_hint(key: str, text: str | None, home: Path | None) -> str:
    """Return the end of the sentence about a text that a key refused: how the key is removed, where that was meant;
    else nothing. `home`: see `write_setting`."""
    if text is None or not means_removal(text):
        return ""
    place = "" if home is None else f" --home {shlex.quote(str(home))}"
    return f"; `echo2-node config unset {key}{place}` removes the setting"


def set_key(key: str, text: str | None, environ: Mapping[str, str], home: Path | None = None) -> NodeConfig:
    """Write a key, or remove it; return the settings then in force. `text`: text as a flag or a variable has it; None:
    remove the key. `home`: whose own file is written; None: the user's. Raises `SettingsFault`, `BadConfig`,
    `DiskFull`."""
    check_key(key)
    path, at = _path(environ, home), {"home": home}
    read_file(path)  # a file that is at fault is left alone
    source = path.read_text("utf-8") if path.exists() else ""
    values: Any = {} if text is None else values_of({key: text})
    load_config({**at, **values}, environ)
    *tables, name = key.split(".")
    for part in tables:
        values = values.get(part, {})
    source = with_value(source, tables, name, values.get(name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o777 if home is None else 0o700)
        with writing(path) as file:
            file.write(source.encode())
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR):
            raise  # /proc, for one, takes no folder and says "no such file"
        other = "name another file in ECHO2_CONFIG" if home is None else "choose another folder with --home"
        raise BadConfig(f"cannot write {path}: {error.strerror}; {other}") from error
    return load_config(at, environ)[0]


def _path(environ: Mapping[str, str], home: Path | None) -> Path:
    return config_path(environ) if home is None else home_file(home)
