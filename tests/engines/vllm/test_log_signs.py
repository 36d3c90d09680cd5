"""Signs of a start that goes on."""

import io
import logging

from echo2.engines.vllm import log_signs


def test_each_line_of_a_librarys_log_is_a_sign_and_none_more_is_printed() -> None:
    printed, log, signs = io.StringIO(), logging.getLogger("a library"), list[int]()
    log.addHandler(logging.StreamHandler(printed))
    log.setLevel(logging.ERROR)
    with log_signs.from_log("a library", lambda: signs.append(1)):
        logging.getLogger("a library.part").info("compiles")
        log.error("warns")
    log.info("generates")
    assert len(signs) == 2
    assert printed.getvalue() == "warns\n"
    assert log.level == logging.ERROR
    assert [one.level for one in log.handlers] == [logging.NOTSET]
