"""Settings of a node: one frozen model. A flag overrides the environment, which overrides the home's own file, which
overrides the user's file and the default.

Rules
1. The user's file is `$XDG_CONFIG_HOME/echo2/node.toml`, or the one that `ECHO2_CONFIG` names; it counts for all nodes
   of the user. The home's own file is `node.toml` in the home; it counts for the node there alone. The environment
   variable of a field is `ECHO2_` and its name in capitals.
2. An unknown key, in the file or under `ECHO2_`, is an error that names the nearest known one. A value of another type
   is converted where that loses nothing (runtime/settings.py).
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from echo2.engines.process.device_list import DEVICE_NAME, PATTERN
from echo2.node.home_place import config_path, default_home
from echo2.node.owner.owner_rules import Occasion
from echo2.node.owner.work_hours import parse_hours
from echo2.p2p.multiaddr import ROUTES, Route, address_of
from echo2.protocol.money_text import parse_amount
from echo2.protocol.sealed_asks import parse_ask
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import DEFAULT_ORIGIN, FLAG, Loader, SettingsFault, holds, merge, read_toml
from echo2.runtime.settings_file import text_of

PREFIX: Final = "ECHO2_"
OF_A_NODE: Final = ("ask", "tariff", "watts")
"""Settings that belong to one node, as its device has a cost of its own: `config set` writes them to its file."""
NOT_SETTINGS: Final = {
    "ECHO2_CONFIG", "ECHO2_CONTAINER", "ECHO2_DEBUG", "ECHO2_ENGINES", "ECHO2_KEY_PASSPHRASE", "ECHO2_LLAMA_LIB",
    "ECHO2_SERVER_KEY", "ECHO2_STAND_INS",
}  # fmt: skip
"""Variables with the prefix that are not settings of a node."""
Duty = Annotated[int, Field(ge=5, le=100)]
Gigabytes = Annotated[float, Field(ge=0)]
Celsius = Annotated[float, Field(gt=20, le=120)]
Watts = Annotated[int, Field(gt=0)]


class DeviceOverrides(BaseModel):
    """The limits of one device, in place of those of all under the same names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    duty: Duty | None = None
    reserve: Gigabytes | None = None
    hottest: Celsius | None = None
    power: Watts | None = None


class NodeConfig(BaseModel):
    """The settings of a node. Each description states effect and unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    invite: str | None = Field(
        None, description="The run's invite, one string, or its page's address. Unset: the one joined last."
    )
    accept_fingerprint: str | None = Field(
        None,
        description="Join the run of this fingerprint, by its page or on the local network. Unset: it is asked for.",
    )
    directories: tuple[Annotated[str, Field(pattern=r"^https?://[^\s#/]+[^\s#]*#[0-9a-f]{64}$")], ...] = Field(
        (),
        max_length=16,
        examples=["https://lists.example.org/runs.json#KEY (KEY: the 64 hexadecimal digits of its author's key)"],
        description="Lists of runs for `echo2-node discover`, each as URL#KEY of its author.",
    )
    home: Path = Field(default_factory=default_home, description="Folder of key, weights, outbox and receipts.")
    name: str = Field(
        "", max_length=40, description="Public name on the leaderboard. Empty: the peer id's last 8 characters."
    )
    team: str = Field("", max_length=40, description="Team that this node's work counts for, any name. Empty: none.")
    show_hardware: bool = Field(
        False,
        description="Show on the run's page the name of the device, as in NVIDIA GeForce RTX 3060; else its kind.",
    )
    gpu: str = Field(
        "auto",
        pattern=PATTERN,
        examples=["auto", "cpu", "cuda:1", "cuda:0,cpu", "0,1", "all"],
        description="Device that generates: auto, cpu, mps, metal, cuda, rocm, xpu or vulkan, with a number as in "
        "cuda:1; several as in 0,1 or cuda:0,cpu, or all GPUs: all.",
    )
    engine: str = Field(
        "auto",
        pattern="^[a-z]{1,20}$",
        examples=["auto", "transformers", "llamacpp"],
        description="Engine that generates: auto, transformers, llamacpp, vllm or server.",
    )
    server: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+\S*$",
        examples=["http://127.0.0.1:8000"],
        description="Address of the running server that the engine server uses, as in http://127.0.0.1:8000.",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16", "blocks"] = Field(
        "auto",
        description="Number format that generates: auto (the fastest that the run takes, where --gpu is auto, else the "
        "run's own, or the first in which it admits the engine), float32, float16, bfloat16, or blocks: a quantised "
        "base as it is stored.",
    )
    listen: tuple[str, ...] = Field(
        ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"),
        description="Multiaddresses to listen on for peers. Port 0: any free one; of those below 1024 only 443 is "
        "announced to others. An empty list: nowhere.",
    )
    via: tuple[Route, ...] = Field(
        ROUTES, min_length=1, description="Routes to other peers, tried in this order: direct, relay, https."
    )
    uplink: float | None = Field(
        None, gt=0, description="Most payload sent to other peers, in Mbit/s. Unset: no limit."
    )
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
        None, gt=0, description="Most payload received from other peers, in Mbit/s. Unset: no limit."
    )
    month_up: float | None = Field(
        None, gt=0, description="Most payload sent in a calendar month, in GB; then a trickle. Unset: no limit."
    )
    month_down: float | None = Field(
        None, gt=0, description="Most payload received in a calendar month, in GB; then none. Unset: no limit."
    )
    duty: Duty = Field(100, description="Percent of the time that each device computes.")
    reserve: Gigabytes = Field(0.0, description="Memory of each device left to other programs, in GB.")
    hottest: Celsius | None = Field(
        None, description="Temperature above which a device rests until it is 10 °C cooler, in °C. Unset: no limit."
    )
    power: Watts | None = Field(
        None, description="Most power of each GPU, in W: by its driver's limit, else by duty. Unset: no limit."
    )
    devices: dict[str, DeviceOverrides] = Field(
        {}, description="Tables such as [devices.1] or [devices.cpu], with duty, reserve, hottest, power of one device."
    )
    slow_hours: str = Field(
        "",
        description="Hours at which the slow caps are in force, written as hours. Empty: only at `echo2-node slow on`.",
    )
    slow_uplink: float | None = Field(None, gt=0, description="uplink while slow, in Mbit/s. Unset: as uplink.")
    slow_downlink: float | None = Field(None, gt=0, description="downlink while slow, in Mbit/s. Unset: as downlink.")
    slow_duty: Duty | None = Field(None, description="duty while slow, in percent. Unset: as duty.")
    priority: Literal["idle", "low", "normal"] = Field(
        "idle",
        description="Priority beside your own programs: idle (an engine on a CPU computes when nothing else wants to, "
        "all else at nice 10), low (all at nice 10) or normal.",
    )
    hours: str = Field(
        "",
        description="Hours at which this node works, by this machine's clock, as in mon-fri 20:00-07:00, sat-sun. "
        "Empty: always.",
    )
    yield_to: tuple[str, ...] = Field(
        (), description="Programs during which this node rests, by their names as `ps -e` shows them, as in steam."
    )
    yield_when: tuple[Occasion, ...] = Field(
        ("battery",),
        description="Occasions on which this node rests: gpu (another process uses one), fullscreen (a program has "
        "the whole screen), keyboard (or mouse is used), battery (no mains), metered (line). An empty one: none.",
    )
    quiet: float = Field(60.0, ge=1, le=86_400, description="Seconds without any of these until work goes on.")
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        "auto",
        description="CPU threads of each engine. auto: OMP_NUM_THREADS, else the cores that this node may use, divided "
        "among its devices.",
    )
    rows: int | None = Field(
        None, ge=1, le=65_536, description="Most rollouts that are generated at a time. Unset: as many as gain and fit."
    )
    base: str = Field(
        "auto",
        min_length=1,
        description="Folder of a copy of the run's base model, or a cache of the Hugging Face hub: what is there is "
        "not fetched. auto: the hub's cache of this user; none: no copy is looked for.",
    )
    disk: float = Field(50.0, gt=0, description="Most disk space for weights, in GB.")
    outbox: int = Field(256, ge=1, le=100_000, description="Most groups that wait for an answer; then work pauses.")
    drain: float = Field(120.0, ge=0, description="Seconds that a finishing node waits for the answers to its groups.")
    ask: str | None = Field(
        None,
        description="Price for which this node works, per hour in the run's currency, as in 0.12/h. Only runs that pay "
        "money need it.",
    )
    tariff: str | None = Field(
        None, description="Price of a kWh of electricity in the run's currency, as in 0.32, for `echo2-node earnings`."
    )
    watts: int | None = Field(
        None, ge=1, le=1_000_000, description="Power that this machine draws while it works, in W, for the same."
    )
    log: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged: debug, info, warning or error."
    )
    json_logs: bool = Field(False, description="Log JSON lines instead of plain ones.")

    def by_device(self, key: str) -> dict[str, Any]:
        """Return a limit by the names of devices, that of all others under ''."""
        own = {name: getattr(one, key) for name, one in self.devices.items()}
        return {"": getattr(self, key)} | {name: value for name, value in own.items() if value is not None}

    @field_validator("invite", "name", "team")
    @classmethod
    def _strip_blanks(cls, value: str | None) -> str | None:
        return value.strip() if value is not None else None

    @field_validator("accept_fingerprint")
    @classmethod
    def _check_fingerprint(cls, value: str | None) -> str | None:
        if value is not None and not any(map(str.isalnum, value)):
            raise ValueError("names no fingerprint: type the one that the operator tells you, as ABCD-EFGH-...")
        return value

    @field_validator("devices")
    @classmethod
    def _check_devices(cls, value: dict[str, DeviceOverrides]) -> dict[str, DeviceOverrides]:
        for name in value:
            if re.fullmatch(DEVICE_NAME, name) is None:
                raise ValueError(f"has {name[:60]!r}: name a device by its number, or as in cuda:1 or cpu")
            if other := next((one for one in value if one.endswith(f":{name}")), None):
                raise ValueError(f"names {name} and {other}, which may be one device: write both in one form")
        return value

    @field_validator("hours", "slow_hours")
    @classmethod
    def _check_hours(cls, value: str) -> str:
        parse_hours(value)
        return value.strip()

    @field_validator("yield_when", mode="before")
    @classmethod
    def _drop_empty_occasions(cls, value: object) -> object:
        return [one for one in value if one != ""] if isinstance(value, list | tuple) else value

    @field_validator("yield_to")
    @classmethod
    def _check_programs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name.strip() for name in value if name.strip())
        for name in names:
            if "/" in name or not name.isprintable() or len(name) > 255:
                raise ValueError(f"has {name[:60]!r}: name the program alone, as `ps -e` shows it")
        return names

    @field_validator("listen")
    @classmethod
    def _drop_empty_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in filter(None, value):
            if not address_of(address).is_listening:
                raise ValueError(f"has {address!r}: write /ip4/0.0.0.0/tcp/0 or the like")
        return tuple(address for address in value if address)

    @field_validator("ask", "tariff")
    @classmethod
    def _strip_price(cls, value: str | None, info: ValidationInfo) -> str | None:
        try:
            if value is not None and info.field_name == "ask":
                parse_ask(value, None)
            elif value is not None:
                parse_amount(value)
        except LocalFault as error:
            raise ValueError(str(error)) from error
        return None if value is None else value.strip()

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("has characters that cannot be printed")
        return value


def home_file(home: Path) -> Path:
    """Return the path of a home's own settings file, which may not exist."""
    return home / "node.toml"


def load_config(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> tuple[NodeConfig, dict[str, str]]:
    """Return the settings, and the source of each key ("command line", the variable, the file's path, "default").

    `flags`: None means not given. Raises `SettingsFault`."""
    path, given = config_path(environ), {key: value for key, value in flags.items() if value is not None}
    file = read_file(path)
    config, origins = _LOADER.load(file, source=str(path), env=environ, flags=given)
    near = home_file(config.home)
    own = read_file(near) if near != path else {}
    if not own:
        return config, origins
    if "home" in own:
        raise SettingsFault(f"{near} is the file of that home alone, and names no other one: remove `home` from it")
    _LOADER.load(own, source=str(near), env={}, flags={})
    merge(file, own)
    config, origins = _LOADER.load(file, source=str(path), env=environ, flags=given)
    return config, {key: str(near) if holds(own, key) and at == str(path) else at for key, at in origins.items()}


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a settings file, unchecked; nothing if there is none. Raises `SettingsFault`."""
    try:
        return read_toml(path)
    except FileNotFoundError:
        return {}


def values_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values, unchecked, that texts of the command line stand for, by key. Raises `SettingsFault`."""
    values: dict[str, Any] = {}
    for key, text in texts.items():
        merge(values, _LOADER.from_text(key, text))
    return values


def check_values(values: Mapping[str, Any]) -> NodeConfig:
    """Return settings of these values alone. Raises `SettingsFault`."""
    return _LOADER.load({}, source=FLAG, env={}, flags=values)[0]


def flags_by_device(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a command, with those of one device, as in `--duty 1=50`, under `devices`. Raises
    `SettingsFault`."""
    given = {key: value for key, value in flags.items() if key not in DeviceOverrides.model_fields}
    for key in DeviceOverrides.model_fields:
        for text in flags.get(key) or ():
            name, equals, value = text.rpartition("=")
            merge(given, values_of({f"devices.{name}.{key}" if equals else key: value}))
    return given


def check_key(key: str) -> None:
    """Check that there is a setting of this name. Raises `SettingsFault`."""
    _LOADER.field(key)


def value_of(config: NodeConfig, key: str) -> Any:
    """Return the value of a key; None also for a table that is not there."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return (value or None) if key == "devices" else value


def _foreign(name: str) -> bool:
    """Tell whether a variable with the prefix belongs to another part: it is not a setting of a node."""
    return name in NOT_SETTINGS or name.startswith("ECHO2_COORD")


_LOADER: Final = Loader(NodeConfig, PREFIX, _foreign)


def list_settings(key: str | None, *, origin: bool, home: Path | None = None) -> list[str]:
    """Return lines "key = value  # unit and meaning"; the invite's value is not shown. `key`: None lists all. `origin`:
    show the source of each value in place of its meaning. `home`: see the flag. Raises `SettingsFault`."""
    config, origins = load_config({"home": home})
    if key is not None:
        check_key(key)
    lines = []
    tables = [name for name in origins if name.startswith("devices.")] or ["devices"]
    keys = [name for one in NodeConfig.model_fields for name in (tables if one == "devices" else [one])]
    for name in tables if key == "devices" else [key] if key is not None else keys:
        value = value_of(config, name)
        shown = "(set)" if name == "invite" and value else value
        meaning = NodeConfig.model_fields[name.rpartition(".")[2]].description
        note = f"from {origins.get(name, DEFAULT_ORIGIN)}" if origin else meaning
        lines.append(f"{name} = {text_of(shown)}  # {note}")
    return lines
