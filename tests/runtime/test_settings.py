"""runtime/settings.py: one loader for a flat model and for one with sections."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from echo2.runtime.settings import Loader, SettingsFault, read_toml


class Flat(BaseModel, frozen=True, extra="forbid"):
    name: str = ""
    home: Path = Path("/home")
    note: str | None = None
    kind: Literal["1", "2"] = "1"
    rate: float | None = Field(None, gt=0)
    listen: tuple[str, ...] = ("a",)


class Web(BaseModel, frozen=True, extra="forbid", strict=True):
    port: int = 1
    host: str = "here"


class Whole(BaseModel, frozen=True, extra="forbid"):
    web: Web = Web()


FLAT = Loader(Flat, "TEST_", lambda name: name == "TEST_HOME_OF_THE_COMMAND")
WHOLE = Loader(Whole, "TEST_", lambda name: False)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("NAME", "123", "123"),
        ("NOTE", "0042", "0042"),
        ("HOME", "7", Path("7")),
        ("KIND", "2", "2"),
        ("RATE", "2", 2.0),
        ("LISTEN", "[]", ()),
        ("LISTEN", "b c, d", ("b", "c", "d")),
        ("LISTEN", '["b c"]', ("b c",)),
    ],
)
def test_a_variable_is_read_as_its_key_wants_it(variable: str, text: str, value: object) -> None:
    settings, origins = FLAT.load({}, source="file", env={f"TEST_{variable}": text}, flags={})
    assert getattr(settings, variable.lower()) == value
    assert origins[variable.lower()] == f"TEST_{variable}"


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_is_not_set(text: str) -> None:
    settings, origins = FLAT.load({"rate": 2.0}, source="file", env={"TEST_RATE": text, "TEST_UNKNOWN": ""}, flags={})
    assert (settings.rate, origins["rate"]) == (2.0, "file")


def test_a_mark_at_the_begin_of_a_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("rate = 2", encoding="utf-8-sig")
    assert read_toml(tmp_path / "x.toml") == {"rate": 2}


def test_a_flag_goes_before_a_variable_before_the_file_before_the_default() -> None:
    file = {"web": {"port": 2, "host": "file"}}
    settings, origins = WHOLE.load(file, source="file", env={"TEST_WEB_PORT": "3"}, flags={"web": {"port": 4}})
    assert (settings.web.port, settings.web.host) == (4, "file")
    assert origins == {"web.port": "command line", "web.host": "file"}
    assert file == {"web": {"port": 2, "host": "file"}}, "what was given is not changed"


def test_a_foreign_variable_is_left_alone_and_an_unknown_one_is_named() -> None:
    assert FLAT.from_env({"TEST_HOME_OF_THE_COMMAND": "x", "PATH": "/bin"}) == {}
    with pytest.raises(SettingsFault, match="unknown environment variable TEST_LISTE; did you mean TEST_LISTEN"):
        FLAT.from_env({"TEST_LISTE": "x"})


@pytest.mark.parametrize(
    ("file", "env", "sentence"),
    [
        ({"rates": 1}, {}, "file: unknown key rates; did you mean rate?"),
        ({"rate": "fast"}, {}, "file: rate should be a number"),
        ({"rate": 1}, {"TEST_RATE": "0"}, "TEST_RATE: rate should be greater than 0, not 0"),
        ({}, {"TEST_RATE": "1\n[web]\nport = 2"}, "TEST_RATE: rate should be a number"),
        ({}, {"TEST_RATE": 3000 * "["}, "TEST_RATE: rate should be a number"),
    ],
)
def test_a_wrong_value_is_blamed_on_where_it_was_given(
    file: dict[str, object], env: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SettingsFault) as fault:
        FLAT.load(file, source="file", env=env, flags={})
    assert str(fault.value).startswith(sentence)


def test_a_value_where_a_section_belongs_is_named_though_a_variable_sets_one_of_its_keys() -> None:
    with pytest.raises(SettingsFault, match=r"\[web\] should be a section of settings, not 3"):
        WHOLE.load({"web": 3}, source="file", env={"TEST_WEB_PORT": "3"}, flags={})


@pytest.mark.parametrize("text", [f"a = {'9' * 5000}", f"a = {3000 * '['}", "a ="])
def test_a_file_beyond_what_python_reads_is_no_toml(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "a.toml").write_text(text)
    with pytest.raises(SettingsFault, match="is not TOML"):
        read_toml(file)


def test_a_missing_file_is_left_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_toml(tmp_path / "none.toml")
