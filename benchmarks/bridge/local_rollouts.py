"""Roll a taskset out against an inference server, by verifiers alone: the anchor of benchmarks.bridge.

Run by the Python that has verifiers, as `local_rollouts.py SETTINGS`. Each order is a line of JSON, {episodes}: pairs
of a name and a row's index in the taskset. Each episode's end is a line, {name, reward}, as it comes. At most
`at_once` episodes run at a time. The name travels in the header X-Episode.
"""

import asyncio
import json
import os
import sys
from typing import Any


async def _serve(settings: dict[str, Any], out: Any) -> None:
    from bridge_server import resolved
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.serve.client import EnvClient
    from verifiers.v1.serve.server import EnvServer
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_taskset

    config = resolved(settings["env"])
    rows = [row.data.model_dump(mode="json") for row in load_taskset(config.taskset)]
    server = EnvServer(config, address="tcp://127.0.0.1:0")
    serving = asyncio.create_task(server.run())
    env = EnvClient(server.address)
    await env.wait_for_server_startup()
    reader = asyncio.StreamReader(limit=64 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    places = asyncio.Semaphore(settings["at_once"])

    async def roll_out(name: str, index: int) -> None:
        client = TrainClientConfig(
            base_url=settings["url"],
            api_key_var="ECHO2_HAS_NO_KEY",
            headers={"X-Episode": name},
            renderer=settings["renderer"],
            renderer_model_name=settings["model"],
        )
        sampling = SamplingConfig(temperature=1.0, top_p=1.0)
        async with places:
            episode = await env.run(client=client, model="policy", sampling=sampling, task_data=rows[index])
        print(json.dumps({"name": name, "reward": float(episode.traces[0].reward)}), file=out, flush=True)

    print(json.dumps({"ready": True}), file=out, flush=True)
    while order := await reader.readline():
        await asyncio.gather(*(roll_out(name, index) for name, index in json.loads(order)["episodes"]))
    serving.cancel()


def main() -> None:
    """Serve the settings on the command line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    sys.path[1:1] = settings["path"]
    asyncio.run(_serve(settings, out))


if __name__ == "__main__":
    main()
