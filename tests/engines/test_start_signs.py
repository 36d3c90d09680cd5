"""Signs of a start that goes on."""

import io
import logging

import pytest

from echo2.engines import start_signs


@pytest.fixture
def signs() -> list[int]:
    heard: list[int] = []
    start_signs.listen(lambda: heard.append(1))
    return heard


def test_each_line_of_a_librarys_log_is_a_sign_and_none_more_is_printed(signs: list[int]) -> None:
    printed, log = io.StringIO(), logging.getLogger("a library")
    log.addHandler(logging.StreamHandler(printed))
    log.setLevel(logging.ERROR)
    with start_signs.from_log("a library"):
        logging.getLogger("a library.part").info("compiles")
        log.error("warns")
    log.info("generates")
    assert len(signs) == 2
    assert printed.getvalue() == "warns\n"
    assert log.level == logging.ERROR
    assert [one.level for one in log.handlers] == [logging.NOTSET]


def test_a_sign_needs_nobody_who_listens(signs: list[int]) -> None:
    start_signs.sign()
    start_signs.listen(lambda: None)
    start_signs.sign()
    assert len(signs) == 1
