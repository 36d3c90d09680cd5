"""Classes that a server of vLLM must import in its workers so that weights can be handed to it: `vllm serve
--worker-extension-cls echo2.engines.vllm.worker_extension.WorkerExtension`. Importing it registers the weight
transfer before the worker loads its model.
"""

from vllm.platforms import current_platform

from echo2.engines.vllm import patch_transfer

patch_transfer.register()
if current_platform.is_cpu():
    patch_transfer.keep_plain_weights()


class WorkerExtension:
    """vLLM adds its methods to those of a worker: there are none."""
