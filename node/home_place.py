"""Where a node's home and its owner's settings file lie. Commands that only ask a daemon need no more, and start faster
without the library of the settings."""

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def default_home() -> Path:
    """Return the default home, in XDG's data folder: identity, run folders and model."""
    return Path(platformdirs.user_data_dir("echo2", appauthor=False)) / "node"


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file, which may not exist."""
    named = environ.get("ECHO2_CONFIG")
    return Path(named) if named else Path(platformdirs.user_config_dir("echo2", appauthor=False)) / "node.toml"


def home_without_settings(flag: Path | None) -> Path | None:
    """Return the home where no setting can name another one; None: the settings have to be read. `flag`: `--home`."""
    if flag is not None:
        return flag
    return None if "ECHO2_HOME" in os.environ or config_path().exists() else default_home()
