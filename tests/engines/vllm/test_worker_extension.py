"""Test the classes that a server's worker imports so that weights can be handed to it.

The server itself is in test_real_server."""

import importlib
from typing import Any

import pytest

from echo2.engines.server import requirements
from tests.support import vllm_models

pytestmark = vllm_models.INTERFACES


def extension(monkeypatch: pytest.MonkeyPatch, *, cpu: bool) -> Any:
    """Import the module as a worker does that has imported nothing of echo2 before."""
    from vllm import _custom_ops
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    monkeypatch.setattr(WeightTransferEngineFactory, "_registry", {})
    monkeypatch.setattr(_custom_ops, "_supports_onednn", True)
    monkeypatch.setattr(utils, "check_cpu_sgl_kernel", lambda *sizes: True)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda platform: cpu)
    return importlib.reload(importlib.import_module("echo2.engines.vllm.worker_extension"))


def test_a_worker_that_imports_it_knows_the_weight_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    extension(monkeypatch, cpu=True)
    assert list(WeightTransferEngineFactory._registry) == ["echo2"]


@pytest.mark.parametrize("cpu", [True, False])
def test_on_a_cpu_alone_linear_layers_keep_their_weights_as_they_are(
    cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils

    extension(monkeypatch, cpu=cpu)
    assert _custom_ops._supports_onednn is not cpu
    assert utils.check_cpu_sgl_kernel(64, 64, None) is not cpu


def test_the_command_that_starts_a_server_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM finds the class by this name, and refuses one with an attribute that its own worker has."""
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.worker.worker_base import WorkerBase

    extension(monkeypatch, cpu=True)
    words = requirements.COMMAND.split()
    extended = resolve_obj_by_qualname(words[words.index("--worker-extension-cls") + 1])
    added = [name for name in dir(extended) if not name.startswith("__")]
    assert extended.__name__ == "WorkerExtension"
    assert not [name for name in added if hasattr(WorkerBase, name)]
