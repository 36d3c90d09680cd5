"""The settings of a node: sources, precedence, errors."""

from pathlib import Path

import pytest

from echo2.node.config import NodeConfig, flags_by_device, list_settings, load_config
from echo2.node.home_place import config_path
from echo2.runtime.settings import SettingsFault


@pytest.mark.parametrize(
    ("flags", "environ"),
    {
        "an empty flag": ({"listen": [""]}, {}),
        "an empty list in a variable": ({}, {"ECHO2_LISTEN": "[]"}),
    }.values(),
)
def test_a_node_may_listen_nowhere(flags: dict[str, object], environ: dict[str, str]) -> None:
    config, origins = load_config(flags, {"ECHO2_CONFIG": "/nowhere/node.toml", **environ})
    assert config.listen == ()
    assert origins["listen"] != "default"


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('name = "file"\ngpu = "cuda:1"\nthreads = 3\n')
    environ = {"ECHO2_CONFIG": str(file), "ECHO2_NAME": "environment", "ECHO2_GPU": "cpu"}
    config, origins = load_config({"name": "flag", "gpu": None}, environ)
    assert (config.name, config.gpu, config.threads, config.outbox) == ("flag", "cpu", 3, 256)
    assert [origins[key] for key in ("name", "gpu", "threads", "outbox")] == [
        "command line",
        "ECHO2_GPU",
        str(file),
        "default",
    ]


def test_the_file_lies_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path({}) == tmp_path / "echo2" / "node.toml"


BAD_SETTINGS = {
    "an unknown key in the file": ("gpus = 1\n", {}, "did you mean gpu"),
    "a key that an earlier build had, perhaps": (
        "wheel = 1\n",
        {},
        "unknown key wheel; no name here is like it: remove it",
    ),
    "an unknown variable": ("", {"ECHO2_INVIT": "x"}, "did you mean ECHO2_INVITE"),
    "no TOML": ("name = = 3\n", {}, "is not TOML"),
    "a number of the wrong kind": ('threads = "many"\n', {}, "threads should be a whole number, not 'many'"),
    "a fraction for a whole number": ("threads = 1.5\n", {}, "threads should be a whole number, not 1.5"),
    "a word for a number": ("", {"ECHO2_UPLINK": "fast"}, "uplink should be a number, not 'fast'"),
    "a word for yes or no": ("", {"ECHO2_RELAY": "maybe"}, "relay should be true or false, not 'maybe'"),
    "a device that is none": (
        "",
        {"ECHO2_GPU": "tpu"},
        "gpu should be like auto or cpu or cuda:1 or .* or all, not 'tpu'",
    ),
    "a number of a device that is none": ("", {"ECHO2_GPU": "cuda:x"}, "gpu should be like .*, not 'cuda:x'"),
    "a number format that is none": (
        "",
        {"ECHO2_DTYPE": "int4"},
        "dtype should be 'auto', 'float32', 'float16', 'bfloat16' or 'blocks', not 'int4'",
    ),
    "an address without its kind": (
        "",
        {"ECHO2_SERVER": "127.0.0.1:8000"},
        "server should be like http://127.0.0.1:8000, not '127.0.0.1:8000'",
    ),
    "a level that is none": ("", {"ECHO2_LOG": "loud"}, "log should be 'debug', .* or 'error', not 'loud'"),
    "a name too long": ("", {"ECHO2_NAME": "x" * 41}, "name"),
    "a name with a control character": ("", {"ECHO2_NAME": "a\x1b[31mb"}, "printed"),
    "an empty fingerprint": (
        'accept_fingerprint = " "\n',
        {},
        "accept_fingerprint: names no fingerprint",
    ),
    "a disk of nothing": ("disk = 0\n", {}, "disk"),
    "a negative ask": ('ask = "-0.12/h"\n', {}, "ask: '-0.12/h' is no ask"),
    "an ask that is not a number": ("", {"ECHO2_ASK": "NaN/h"}, "ask: 'NaN/h' is no ask"),
    "a huge ask": ("", {"ECHO2_ASK": "100001/h"}, "ask: an ask lies from"),
    "an ask in fractions of a nano unit": ("", {"ECHO2_ASK": "0.1234567891/h"}, "more than nine decimals"),
    "a tariff that is no number": ("", {"ECHO2_TARIFF": "cheap"}, "tariff: 'cheap' is no amount"),
    "no power": ("watts = 0\n", {}, "watts"),
    "hours that never come": ('hours = "20:00-20:00"\n', {}, "hours: 20:00-20:00 never comes"),
    "hours on a day that is none": ("", {"ECHO2_HOURS": "fry 8:00-9:00"}, "hours: unknown day fry; did you mean fri"),
    "hours as a number": ("hours = 8\n", {}, "hours should be a text, not 8"),
    "an occasion that is none": (
        "",
        {"ECHO2_YIELD_WHEN": "gpu,batery"},
        "yield_when should be 'gpu', 'fullscreen', 'keyboard', 'battery' or 'metered', not 'batery'",
    ),
    "occasions as a text": ('yield_when = "gpu"\n', {}, "yield_when should be a list, not 'gpu'"),
    "a program by its path": (
        "",
        {"ECHO2_YIELD_TO": "/usr/bin/steam"},
        "yield_to: has '/usr/bin/steam': name the program",
    ),
    "a program with a control character": ('yield_to = ["a\\u001b"]\n', {}, "yield_to: has 'a"),
    "a program as a text": ('yield_to = "steam"\n', {}, "yield_to should be a list, not 'steam'"),
    "no quiet": ("quiet = 0\n", {}, "quiet should be greater than or equal to 1, not 0"),
    "a negative quiet": ("", {"ECHO2_QUIET": "-1"}, "quiet should be greater than or equal to 1, not -1"),
    "an endless quiet": ("quiet = inf\n", {}, "quiet should be"),
    "a quiet of a word": ("", {"ECHO2_QUIET": "1h"}, "quiet should be a number without a unit, not '1h'"),
    "devices as a number": ("", {"ECHO2_DEVICES": "5"}, "ECHO2_DEVICES: devices should be a table, not 5"),
    "a device as a number": ("[devices]\n1 = 5\n", {}, r"\[devices.1\] should be a section of settings, not 5"),
    "a device that no machine has": ("[devices.gpu1]\nduty = 50\n", {}, "devices: has 'gpu1': name a device by its"),
    "a device in two forms": (
        '[devices.1]\nduty = 50\n[devices."cuda:1"]\nduty = 50\n',
        {},
        "devices: names 1 and cuda:1, which may be one device: write both in one form",
    ),
    "a duty of a device above all": (
        "[devices.1]\nduty = 101\n",
        {"ECHO2_DEVICES": "{0 = {duty = 50}}"},
        "node.toml: devices.1.duty should be less than or equal to 100, not 101",
    ),
    "a key of a device that is nearly hottest": (
        '[devices."cuda:0"]\nhotest = 70\n',
        {},
        "unknown key devices.cuda:0.hotest; did you mean devices.cuda:0.hottest",
    ),
    "a key of all devices in a table of one": (
        "[devices.1]\nuplink = 4\n",
        {},
        "unknown key devices.1.uplink; known are duty, reserve, hottest, power",
    ),
    "a key that is nearly hours": ('hour = "sat"\n', {}, "did you mean hours"),
    "a key that is nearly yield_to": ("yield = []\n", {}, "did you mean yield_to"),
}


@pytest.mark.parametrize("sentence", BAD_SETTINGS)
def test_a_bad_setting_is_one_line_that_names_it(tmp_path: Path, sentence: str) -> None:
    text, environ, said = BAD_SETTINGS[sentence]
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(SettingsFault, match=said) as refused:
        load_config({}, {"ECHO2_CONFIG": str(file), **environ})
    assert "\n" not in str(refused.value)


def test_the_coordinators_variables_on_the_same_machine_are_not_the_nodes() -> None:
    assert load_config({}, {"ECHO2_COORD_HOME": "/srv/run", "ECHO2_KEY_PASSPHRASE": "x"}) == load_config({}, {})


def test_every_setting_has_a_description() -> None:
    for name, field in NodeConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_occasions_and_programs_come_as_words_and_an_empty_flag_means_none() -> None:
    nowhere = {"ECHO2_CONFIG": "/nowhere/node.toml"}
    config, _ = load_config({}, {**nowhere, "ECHO2_YIELD_TO": "steam blender", "ECHO2_YIELD_WHEN": "gpu,battery"})
    assert (config.yield_to, config.yield_when) == (("steam", "blender"), ("gpu", "battery"))
    assert load_config({}, nowhere)[0].yield_when == ("battery",)
    config, _ = load_config({"yield_when": [""], "yield_to": [" The Game "], "hours": " sat-sun "}, nowhere)
    assert (config.yield_when, config.yield_to, config.hours) == ((), ("The Game",), "sat-sun")


def test_a_device_has_its_own_limits_and_else_those_of_all(tmp_path: Path) -> None:
    file, home = tmp_path / "node.toml", tmp_path / "home"
    file.write_text("duty = 80\nhottest = 85\n[devices.1]\nduty = 50\nreserve = 4\n")
    home.mkdir()
    (home / "node.toml").write_text("[devices.1]\nreserve = 6\n[devices.cpu]\nduty = 20\n")
    flags = flags_by_device(
        {"home": home, "duty": ["70", "1=30"], "power": ["0=200"], "hottest": None, "reserve": None}
    )
    config, origins = load_config(flags, {"ECHO2_CONFIG": str(file), "ECHO2_DEVICES": "{cpu = {duty = 10}}"})
    assert config.by_device("duty") == {"": 70, "1": 30, "cpu": 10}
    assert config.by_device("reserve") == {"": 0.0, "1": 6}
    assert config.by_device("hottest") == {"": 85}
    assert config.by_device("power") == {"": None, "0": 200}
    assert {key: at for key, at in origins.items() if key.startswith("devices.")} == {
        "devices.1.duty": "command line", "devices.1.reserve": str(home / "node.toml"),
        "devices.cpu.duty": "ECHO2_DEVICES", "devices.0.power": "command line",
    }  # fmt: skip


def test_the_limits_of_a_device_are_listed_each_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    monkeypatch.setenv("ECHO2_CONFIG", str(file))
    assert list_settings("devices", origin=True) == ["devices = unset  # from default"]
    file.write_text('[devices."cuda:1"]\nduty = 50\n')
    for key in ("devices", "devices.cuda:1.duty"):
        assert list_settings(key, origin=True) == [f"devices.cuda:1.duty = 50  # from {file}"]
    assert list_settings("devices.cuda:1.power", origin=True) == ["devices.cuda:1.power = unset  # from default"]
    rows = list_settings(None, origin=False)
    assert "devices.cuda:1.duty = 50  # Percent of the time that each device computes." in rows
