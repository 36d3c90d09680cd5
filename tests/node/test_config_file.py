"""`config set`: one key changes, all else in the file stays."""

from pathlib import Path

import pytest

from node.config_file import set_key
from node.errors import BadConfig
from runtime.settings import SettingsFault

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
    assert file.read_text() == 'ask = "0.12/h"\n' + FILE.replace('ask = "0.10/h"\n', "")


def test_a_list_of_several_lines_is_replaced_whole(file: Path) -> None:
    assert set_key("via", "https", environ(file)).via == ("https",)
    assert (
        file.read_text() == 'via = ["https"]\n# my node\nname = "fox"  # on the page\nask = "0.10/h"\n\nthreads = 3\n'
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


def test_a_key_inside_a_long_text_is_not_taken_for_the_setting(file: Path) -> None:
    source = 'name = """fox"""\ninvite = """\nask = "0.10/h"\n"""\n'
    file.write_text(source)
    set_key("ask", "0.12/h", environ(file))
    assert file.read_text() == f'ask = "0.12/h"\n{source}'


def test_a_file_that_cannot_be_changed_safely_is_left_alone(file: Path) -> None:
    file.write_text('"as\\u006b" = "0.10/h"\n')
    with pytest.raises(BadConfig, match="by hand"):
        set_key("ask", "0.12/h", environ(file))
    assert file.read_text() == '"as\\u006b" = "0.10/h"\n'
