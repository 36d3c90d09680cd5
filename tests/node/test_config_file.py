"""`config set`: one key changes, all else in the file stays."""

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from echo2.node import config_file
from echo2.node.config import load_config
from echo2.node.config_file import set_key, write_setting
from echo2.node.errors import BadConfig
from echo2.runtime.settings import SettingsFault

FILE = """# my node
name = "fox"  # on the page
via = [
    "direct",
    "https",
]
ask = "0.10/h"

threads = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "echo2" / "node.toml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def environ(path: Path, **variables: str) -> dict[str, str]:
    return {"ECHO2_CONFIG": str(path), **variables}


def test_a_key_is_replaced_and_every_other_line_stays(file: Path) -> None:
    assert set_key("ask", "0.12/h", environ(file)).ask == "0.12/h"
    assert file.read_text() == FILE.replace("0.10", "0.12")


def test_a_list_of_several_lines_is_replaced_whole(file: Path) -> None:
    assert set_key("via", "https", environ(file)).via == ("https",)
    assert (
        file.read_text() == '# my node\nname = "fox"  # on the page\nvia = ["https"]\nask = "0.10/h"\n\nthreads = 3\n'
    )


def test_a_key_is_removed(file: Path) -> None:
    assert set_key("ask", None, environ(file)).ask is None
    assert file.read_text() == FILE.replace('ask = "0.10/h"\n', "")


def test_the_file_is_made_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "new" / "node.toml"
    config = set_key("watts", "350", environ(path))
    assert (config.watts, path.read_text()) == (350, "watts = 350\n")
    assert set_key("name", 'a "quoted" \\ fox', environ(path)).name == 'a "quoted" \\ fox'
    assert set_key("relay", "true", environ(path)).relay


def test_a_variable_stays_in_force_above_the_file(file: Path) -> None:
    assert set_key("ask", "0.12/h", environ(file, ECHO2_ASK="0.20/h")).ask == "0.20/h"


BAD = {
    "an unknown key": ("aks", "0.12/h", "did you mean ask"),
    "a bad ask": ("ask", "-0.12/h", "is no ask"),
    "a number of the wrong kind": ("threads", "many", "threads should be a whole number"),
    "a device in another form": ("devices.cuda.duty", "50", "has 'cuda': name a device by its number, or as in"),
    "a device without a limit": ("devices.1", "50", "unknown key devices.1; known are duty, reserve, hottest, power"),
    "a limit with a typing error": ("devices.1.dutty", "50", "did you mean devices.1.duty"),
    "a control character": ("name", "a\x1b[31m", "printed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_changes_nothing(file: Path, case: str) -> None:
    key, text, said = BAD[case]
    with pytest.raises(SettingsFault, match=said):
        set_key(key, text, environ(file))
    assert file.read_text() == FILE


def test_a_file_that_is_no_toml_is_left_alone(file: Path) -> None:
    file.write_text("ask = = 3\n")
    with pytest.raises(SettingsFault, match="is not TOML"):
        set_key("ask", "0.12/h", environ(file))
    assert file.read_text() == "ask = = 3\n"


@pytest.mark.parametrize(("home", "remedy"), [(False, "name another file in ECHO2_CONFIG"), (True, "with --home")])
def test_a_file_without_permission_to_write_is_a_bad_setting_that_names_another_place(
    home: bool, remedy: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(config_file, "writing", refused)
    with pytest.raises(BadConfig, match=rf"cannot write \S*\.toml: Read-only file system; .*{remedy}"):
        set_key("rows", "3", environ(file), tmp_path if home else None)
    assert file.read_text() == FILE


def test_a_key_inside_a_long_text_is_not_taken_for_the_setting(file: Path) -> None:
    source = 'name = """fox"""\ninvite = """\nask = "0.10/h"\n"""\n'
    file.write_text(source)
    set_key("ask", "0.12/h", environ(file))
    assert file.read_text() == f'{source}ask = "0.12/h"\n'


ODD_FILES = {
    "no end of its last line": "rows = 2",
    "a key in quotes": '"ask" = "0.10/h"  # mine\nrows = 2\n',
    "a key with an escape": '"as\\u006b" = "0.10/h"\nrows = 2\n',
    "lines that end as on Windows": 'ask = "0.10/h"\r\nrows = 2\r\n',
    "comments alone": "# nothing yet\n\n",
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_the_other_keys_of_an_odd_file_stay_as_they_are(file: Path, case: str) -> None:
    file.write_bytes(ODD_FILES[case].encode())
    before = load_config({}, environ(file))[0]
    assert set_key("ask", "0.12/h", environ(file)) == before.model_copy(update={"ask": "0.12/h"})
    assert set_key("ask", None, environ(file)) == before.model_copy(update={"ask": None})
    assert "comments" not in case or file.read_text().startswith("# nothing yet\n")


def test_two_homes_of_one_user_have_an_ask_each(file: Path, tmp_path: Path) -> None:
    cheap, dear = tmp_path / "gpu0", tmp_path / "gpu1"
    for home, ask in ((cheap, "0.08/h"), (dear, "0.30/h")):
        written = write_setting("ask", ask, environ(file), home)
        assert written.lines() == [f'ask = "{ask}"', f"{home / 'node.toml'}: for the node in {home}"]
    write_setting("gpu", "cuda:1", environ(file), dear)
    asks = {home: load_config({"home": home}, environ(file))[0].ask for home in (cheap, dear, tmp_path / "gpu2")}
    assert asks == {cheap: "0.08/h", dear: "0.30/h", tmp_path / "gpu2": "0.10/h"}
    assert (dear / "node.toml").read_text() == 'ask = "0.30/h"\ngpu = "cuda:1"\n'
    assert file.read_text() == FILE
    assert dear.stat().st_mode & 0o777 == 0o700


def test_what_belongs_to_a_node_goes_to_its_home_without_a_flag_too(file: Path, tmp_path: Path) -> None:
    home = tmp_path / "mine"
    variables = environ(file, ECHO2_HOME=str(home))
    assert write_setting("tariff", "0.32", variables, None).path == home / "node.toml"
    shared = write_setting("threads", "4", variables, None)
    assert shared.lines() == ["threads = 4", f"{file}: for all nodes of this user without one of their own"]
    config, origins = load_config({}, variables)
    assert (config.tariff, config.threads, config.name) == ("0.32", 4, "fox")
    assert [origins[key] for key in ("tariff", "threads", "home")] == [str(home / "node.toml"), str(file), "ECHO2_HOME"]


def test_a_setting_is_removed_where_it_stands(file: Path, tmp_path: Path) -> None:
    home = tmp_path / "mine"
    write_setting("ask", "0.12/h", environ(file), home)
    first = write_setting("ask", None, environ(file), home)
    assert first.lines() == [
        'ask = "0.10/h"', f"{home / 'node.toml'}: for the node in {home}", f"in force here is the value from {file}",
    ]  # fmt: skip
    second = write_setting("ask", None, environ(file), home)
    assert (second.config.ask, second.path) == (None, file)


def test_a_variable_goes_before_the_homes_file_and_is_named(file: Path, tmp_path: Path) -> None:
    written = write_setting("ask", "0.12/h", environ(file, ECHO2_ASK="0.50/h"), tmp_path / "mine")
    assert written.lines()[0] == 'ask = "0.50/h"'
    assert written.lines()[-1] == "in force here is the value from ECHO2_ASK"


def test_a_homes_file_is_checked_as_the_users_and_names_no_home(file: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine" / "node.toml"
    own.parent.mkdir()
    for text, said in (
        ("aks = 1\n", rf"{own}: unknown key aks; did you mean ask"),
        ('ask = "dear"\n', rf"{own}: ask: 'dear' is no ask"),
        ('home = "/else"\n', rf"{own} is the file of that home alone"),
        ("ask = = 1\n", rf"{own} is not TOML"),
    ):
        own.write_text(text)
        with pytest.raises(SettingsFault, match=said):
            load_config({"home": own.parent}, environ(file))
        with pytest.raises(SettingsFault, match=said):
            write_setting("ask", "0.12/h", environ(file), own.parent)
        assert own.read_text() == text


def test_the_home_itself_is_the_users_setting(file: Path, tmp_path: Path) -> None:
    written = write_setting("home", str(tmp_path / "new"), environ(file), tmp_path / "old")
    assert (written.path, written.home) == (file, None)


def test_a_limit_of_one_device_is_written_to_its_table_and_removed_there(file: Path, tmp_path: Path) -> None:
    assert write_setting("devices.1.duty", "50", environ(file), None).lines()[0] == "devices.1.duty = 50"
    assert file.read_text() == f"{FILE}\n[devices.1]\nduty = 50\n"
    set_key("devices.cuda:0.power", "200", environ(file))
    config = set_key("uplink", "8", environ(file))
    assert (config.uplink, config.by_device("power")) == (8.0, {"": None, "cuda:0": 200}), "no key falls into a table"
    own = write_setting("devices.1.duty", "30", environ(file), tmp_path / "mine")
    assert own.path.read_text() == "[devices.1]\nduty = 30\n"
    write_setting("devices.1.duty", None, environ(file), tmp_path / "mine")
    assert load_config({"home": tmp_path / "mine"}, environ(file))[0].by_device("duty") == {"": 100, "1": 50}
    before = file.read_text()
    set_key("devices.7.duty", None, environ(file))
    assert file.read_text() == before
    assert write_setting("devices", "{2 = {duty = 5}}", environ(tmp_path / "new.toml"), None).lines()[0] == (
        "devices = {2 = {duty = 5}}"
    )
    assert set_key("devices", None, environ(file)).devices == {}
