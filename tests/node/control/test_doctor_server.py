"""`echo2-node doctor --engine server`: one row per requirement of the server, met or with its fix."""

import json
from pathlib import Path

import pytest

from echo2.node.config import NodeConfig
from echo2.node.control.doctor import diagnose
from echo2.runtime.exit_codes import Exit
from tests.support.table_server import TableServer


def rows(tmp_path: Path, server: str | None) -> tuple[dict[str, dict[str, str]], int]:
    config = NodeConfig(
        home=tmp_path / "home", listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001, engine="server", server=server
    )
    (text,), code = diagnose(config, as_json=True)
    return {row["check"]: row for row in json.loads(text)}, code


def test_a_server_that_meets_all_has_good_rows_in_place_of_a_gpu(tmp_path: Path) -> None:
    with TableServer(16).running() as server:
        found_rows, code = rows(tmp_path, server.address)
    checks = [
        "server",
        "version",
        "token ids",
        "seeded choice",
        "log-probabilities",
        "weights",
        "scheduling",
        "guesses",
    ]
    assert [found_rows[check]["verdict"] for check in checks] == ["good"] * len(checks)
    assert "gpu" not in found_rows
    assert code == Exit.OK


def test_each_lack_is_a_bad_row_with_its_option(tmp_path: Path) -> None:
    with TableServer(16).running() as server:
        server.settings["model_config"]["logits_processors"] = None
        server.settings["weight_transfer_config"] = None
        found_rows, code = rows(tmp_path, server.address)
    bad = {check: row["remedy"] for check, row in found_rows.items() if row["verdict"] == "bad"}
    assert bad.keys() == {"seeded choice", "weights"}
    assert "--logits-processors echo2.engines.vllm.noise_v1:SeededNoise" in bad["seeded choice"]
    assert "--weight-transfer-config" in bad["weights"]
    assert code == Exit.NO_DEVICE


@pytest.mark.parametrize(
    ("server", "sentence"), [(None, "write --server http://127.0.0.1:8000"), ("http://127.0.0.1:9", "start it, or set")]
)
def test_without_a_server_the_fix_is_named(server: str | None, sentence: str, tmp_path: Path) -> None:
    found_rows, code = rows(tmp_path, server)
    assert sentence in found_rows["server"]["remedy"]
    assert code == Exit.NO_DEVICE
