"""docs/protocol/schema.json is made from the tables, and those of the pages are compared with the code elsewhere."""

import json

from tests.docs import schema


def test_the_file_is_the_one_that_the_tables_make() -> None:
    assert schema.FILE.read_text() == schema.text(), "run: python -m tests.docs.schema"


def test_it_has_every_struct_and_kind_of_the_pages() -> None:
    told = json.loads(schema.FILE.read_text())
    pages = "".join(path.read_text() for path in schema.PAGES.glob("*.md"))
    assert len(told["structs"]) == pages.count("| Field of `")
    assert told["structs"]["LedgerHead"]["fields"][-1] == ["before", "bytes 32 or nil", "nil"]
    assert told["entries"]["epoch.opened"]["key"] == "epoch:<number>:opened"
    assert told["documents"]["ledgerhead"]["role"] == "ledger"
    assert {"hello", "submit"} <= told["methods"].keys()
    assert {"malformed", "banned"} <= told["refusals"].keys()
