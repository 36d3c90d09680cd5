"""Settings of a node: one frozen model. A flag goes before the environment, then the file, then the default.

Rules
1. The file is `$XDG_CONFIG_HOME/echo2/node.toml`, or what `ECHO2_CONFIG` names; an environment variable is `ECHO2_` and
   the field's name in capitals.
2. An unknown key, in the file or under `ECHO2_`, is an error that names the nearest known one.
3. Every error is one line: which key, where it came from, what it may be.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from node.errors import BadConfig
from p2p.multiaddr import WAYS, Way, address_of

PREFIX: Final = "ECHO2_"
NOT_SETTINGS: Final = {"ECHO2_CONFIG", "ECHO2_DEBUG", "ECHO2_KEY_PASSPHRASE"}
"""Variables of ours that are no settings of a node."""


def default_home() -> Path:
    """Where identity, run folders and model lie: XDG's data folder."""
    return Path(platformdirs.user_data_dir("echo2", appauthor=False)) / "node"


class NodeConfig(BaseModel):
    """All that a volunteer may set. Each description says what it does, and in which unit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    invite: str | None = Field(None, description="The run's invite, one string. None: the one joined last.")
    accept_fingerprint: str | None = Field(
        None, description="Join the run of this fingerprint, found on the local network. None: one is typed, or none."
    )
    home: Path = Field(default_factory=default_home, description="Folder of key, weights, outbox and receipts.")
    name: str = Field("", max_length=40, description="Public name on the leaderboard. Empty: the key's first letters.")
    gpu: str = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda|cuda:\d{1,2})$",
        description="Device that generates: auto, cpu, mps, cuda or cuda:N.",
    )
    listen: tuple[str, ...] = Field(
        ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"),
        description="Multiaddresses to listen on; other volunteers take chunks here. Port 0: any free one; of those "
        "below 1024 only 443 is announced to others. An empty list: nowhere.",
    )
    via: tuple[Way, ...] = Field(
        WAYS, min_length=1, description="Ways to others that are tried, in this order: direct, relay, https."
    )
    uplink: float | None = Field(None, gt=0, description="Most payload sent to other peers, in Mbit/s. None: no limit.")
    relay: bool = Field(False, description="Relay connections between peers that cannot reach each other.")
    relay_rate: float = Field(8.0, gt=0, description="Most that is relayed, both directions together, in Mbit/s.")
    relays: tuple[str, ...] = Field(
        (), description="Addresses of relays to be reached through, beside one that is found when it is needed."
    )
    connections: int = Field(
        256, ge=1, le=32768, description="Most connections with peers over libp2p; each takes an open file."
    )
    subnet_connections: int = Field(
        32, ge=1, le=32768, description="Most of them from one public IPv4 /24 or IPv6 /48."
    )
    downlink: float | None = Field(
        None, gt=0, description="Most payload received from other peers, in Mbit/s. None: no limit."
    )
    threads: int = Field(1, ge=1, le=1024, description="CPU threads of the engine.")
    disk: float = Field(50.0, gt=0, description="Most disk space for weights, in GB.")
    outbox: int = Field(256, ge=1, le=100_000, description="Most groups that wait for an answer; then work pauses.")
    drain: float = Field(120.0, ge=0, description="Seconds that an ending node waits for the answers to its groups.")
    log: str = Field("info", pattern="^(debug|info|warning|error)$", description="Least level that is logged.")
    json_logs: bool = Field(False, description="Log JSON lines instead of plain ones.")

    @field_validator("invite", "name")
    @classmethod
    def _stripped(cls, value: str | None) -> str | None:
        return value.strip() if value is not None else None

    @field_validator("listen")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in filter(None, value):
            if not address_of(address).is_listening:
                raise ValueError(f"has {address!r}: write /ip4/0.0.0.0/tcp/0 or the like")
        return tuple(address for address in value if address)

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("has characters that cannot be printed")
        return value


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The settings file, whether it is there or not."""
    named = environ.get("ECHO2_CONFIG")
    return Path(named) if named else Path(platformdirs.user_config_dir("echo2", appauthor=False)) / "node.toml"


def load_config(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> tuple[NodeConfig, dict[str, str]]:
    """The settings, and where each key comes from ("flag", the variable, the file's path, "default").

    `flags`: values that are None were not given. Raises `BadConfig`."""
    path = config_path(environ)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(NodeConfig.model_fields, "default")
    layers = [
        (_read_file(path), f"{path}"),
        (_read_environment(environ), PREFIX),
        ({key: value for key, value in flags.items() if value is not None}, "flag"),
    ]
    for layer, origin in layers:
        for key, value in layer.items():
            values[key], origins[key] = value, PREFIX + key.upper() if origin == PREFIX else origin
    try:
        return NodeConfig.model_validate(values), origins
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise BadConfig(f"{key} (from {origins[key]}): {first['msg']}") from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"{path} cannot be read: {error}") from error
    _refuse_unknown(values.keys(), NodeConfig.model_fields, str(path))
    return values


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX) and not _foreign(name)}
    known = {PREFIX + key.upper(): key for key in NodeConfig.model_fields}
    _refuse_unknown(ours.keys(), known, "the environment")
    values: dict[str, Any] = {known[name]: value for name, value in ours.items()}
    for several in ("listen", "relays", "via"):
        if several in values:
            values[several] = tuple(values[several].split())
    return values


def _foreign(name: str) -> bool:
    """A variable of ours that is no setting of a node."""
    return name in NOT_SETTINGS or name.startswith("ECHO2_COORD")


def _refuse_unknown(names: Any, known: Mapping[str, Any], where: str) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
            raise BadConfig(f"unknown setting {name} in {where}{hint}")


def listed(key: str | None, *, origin: bool) -> list[str]:
    """Lines "key = value  # unit and meaning"; an invite is not spelled out. Raises `BadConfig`."""
    config, origins = load_config({})
    if key is not None:
        _refuse_unknown([key], NodeConfig.model_fields, "config get")
    lines = []
    for name in [key] if key is not None else NodeConfig.model_fields:
        value = getattr(config, name)
        shown = "(set)" if name == "invite" and value else value
        note = f"from {origins[name]}" if origin else NodeConfig.model_fields[name].description
        lines.append(f"{name} = {shown}  # {note}")
    return lines
