"""verifiers' environment server and our end point for its model calls, driven by lines of JSON.

Run by the Python that has verifiers, as `bridge_server.py SETTINGS`; SETTINGS is the JSON that
tasks/verifiers/verifiers_task.py makes.

In:   {do, name} and: write {model, ends, renderer}; begin {split, index}; answer {tokens, finish}; stop; leave;
      answer_of {split, index}; ping
Out:  {train, heldout, version} or {fault}, once; then {name} and: {called}, tokens; {reward, sampled}; {fault};
      {answer, mistake}; {pong}

Rules
1. An episode is a run of verifiers' server, with a client of its train kind that calls the end point. All runs have the
   same client settings: verifiers' interception server keeps a client for each that it has seen, with its TLS settings
   and its connection, until it ends. The episode's name travels in the sampling settings (model_calls.py, rule 1).
2. A rollout ends behind a turn that was cut at the run's limit, and is scored; one that says too much fails
   (rollout_stops.py). `stop` ends one that has a pending call: it is answered by an empty turn that counts as cut,
   which `sampled` leaves out.
3. It ends with its standard input, and what it started with it.
4. Where the taskset brings no harness of its own, the one in echo2_chat.py plays, in this process.
"""

import asyncio
import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MOST_FAULT = 2000
"""Most characters of a fault that are told."""
SPLITS = 16
"""One row in so many is of the held-out split, by the hash of its content."""
TOKENIZERS = "transformers.models.auto.tokenization_auto"
_DIE_WITH_PARENT = 1


class Refused(Exception):
    """A taskset that cannot be served; the message says why."""


def resolve_settings(env: dict[str, Any]) -> Any:
    """Return verifiers' settings of an [env] block. Raises `Refused`, and the errors of verifiers."""
    taskset = _taskset_of(env)
    try:
        return _resolve_block(env, taskset)
    except ModuleNotFoundError as error:
        if f"taskset {taskset!r} not found" not in str(error):
            raise
        raise Refused(
            f"there is no taskset {taskset} in the folders of path, and none in {sys.executable}: correct taskset.id, "
            "or add to path the folder that has it"
        ) from error


def _resolve_block(env: dict[str, Any], taskset: str) -> Any:
    """Return verifiers' settings of an [env] block (rule 4)."""
    from rollout_stops import CUT_STOP, TOO_LONG
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, env_config_type, harness_class, resolve_env_config

    roles = agent_config_fields(env_config_type(taskset, env.get("id", ""))())
    own_harness = default_harness_id(taskset) != "bash"
    ours = Path(__file__).with_name("rollout_stops.py")
    stops = {CUT_STOP: {"fn": f"{ours}:is_cut"}, TOO_LONG: {"fn": f"{ours}:is_too_long"}}
    settings = env["taskset"].get("task", {})
    task = {**settings, "stops": {**settings.get("stops", {}), **stops}}
    data = {**env, "taskset": {**env["taskset"], "task": task}}
    for role, default in roles.items():
        data[role] = dict(data.get(role, {}))
        if "runtime" not in default.model_fields_set:
            data[role].setdefault("runtime", {"type": "subprocess"})
        if not own_harness and default.harness is None:
            data[role].setdefault("harness", {"id": "echo2-chat"})
    config = resolve_env_config(data)
    harnesses = config.agent_harnesses()
    for role, settings in agent_config_fields(config).items():
        if settings.runtime.type != "subprocess":
            raise Refused(f"its {role} needs a sandbox of the kind {settings.runtime.type}, which is not here")
        if harness_class(harnesses[role].id).NEEDS_CONTAINER:
            raise Refused(f"its harness {harnesses[role].id} needs a container, which is not here: name another")
    playing = [role for role, one in agent_config_fields(config).items() if one.client is None]
    if len(playing) != 1:
        raise Refused(
            f"{', '.join(playing) or 'no agent'} would be the run's policy: one agent can be, others need a client"
        )
    return config


def _taskset_of(env: dict[str, Any]) -> str:
    """Return the taskset that an [env] block names. Raises `Refused`."""
    block = env.get("taskset", {})
    if not isinstance(block, dict):
        raise Refused(f'its [env] has taskset = {block!r:.80}: write a table, as in taskset = {{id = "my-taskset"}}')
    if not block.get("id"):
        raise Refused("its [env] names no taskset: write taskset.id")
    return str(block["id"])


def told_of(error: Exception) -> str:
    """Return an error as a sentence: of settings that pydantic refuses, each with its place."""
    if isinstance(error, Refused):
        return str(error)
    if type(error).__name__ != "ValidationError" or not hasattr(error, "errors"):
        return f"{type(error).__name__}: {error}"
    return "; ".join(_refused_setting(one) for one in error.errors())


def _refused_setting(one: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in one["loc"]) or "[env]"
    if one["type"] == "extra_forbidden":
        return f"verifiers has no setting {place} here: correct its name, or remove it"
    return f"verifiers refuses {place}: {one['msg']}"


def rows_of(config: Any, most: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each split, as the server takes them. Raises `Refused`."""
    from verifiers.v1.utils.loaders import load_taskset

    splits: dict[str, list[dict[str, Any]]] = {"train": [], "heldout": []}
    seen = set()
    for row in islice(load_taskset(config.taskset), most):
        data = row.data.model_dump(mode="json")
        key = _key(data)
        if key not in seen:
            seen.add(key)
            splits["heldout" if int(key[:8], 16) % SPLITS == 0 else "train"].append(data)
    for split, rows in splits.items():
        if not rows:
            raise Refused(f"its {len(seen)} rows leave none for the split {split}: one in {SPLITS} is held out")
    return splits


def _key(data: dict[str, Any]) -> str:
    content = {name: value for name, value in data.items() if name not in ("idx", "name", "id")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def version_of(settings: dict[str, Any], splits: dict[str, list[dict[str, Any]]]) -> int:
    """Return a version that tells rows and settings apart: 31 bits of their hash, at least 1."""
    opened = ["opened"] if settings.get("opened") else []
    state = hashlib.sha256(json.dumps([settings["version"], settings["env"], *opened], sort_keys=True).encode())
    for split, rows in splits.items():
        for row in rows:
            state.update(f"{split}{_key(row)}".encode())
    return max(1, int.from_bytes(state.digest()[:4], "little") >> 1)


class Served:
    """The episodes of one taskset."""

    def __init__(self, settings: dict[str, Any], out: Any) -> None:
        self._settings, self._out = settings, out
        self._written: dict[str, Any] = {}
        """Format of conversations: of the order `write`."""
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, str] = {}
        self._stopped: set[str] = set()

    async def serve(self) -> None:
        """Serve until standard input ends."""
        from model_calls import ModelCalls
        from verifiers.v1.serve.client import EnvClient
        from verifiers.v1.serve.server import EnvServer

        config = resolve_settings(self._settings["env"])
        self._splits = await asyncio.to_thread(rows_of, config, self._settings["rows"])
        self._calls = ModelCalls(self._say_call, self._note_refusal)
        self._url = await self._calls.start()
        server = EnvServer(config, address="tcp://127.0.0.1:0")
        serving = asyncio.create_task(server.run())
        self._client = EnvClient(server.address)
        await self._client.wait_for_server_startup()
        await asyncio.to_thread(importlib.import_module, TOKENIZERS)  # so that no episode waits for it
        version = version_of(self._settings, self._splits)
        self._say(train=len(self._splits["train"]), heldout=len(self._splits["heldout"]), version=version)
        orders = asyncio.create_task(self._take_orders())
        await asyncio.wait([orders, serving], return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()

    async def _take_orders(self) -> None:
        reader = asyncio.StreamReader(limit=64 << 20)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while order := await reader.readline():
            self._take(json.loads(order))

    def _take(self, order: dict[str, Any]) -> None:
        from model_calls import Sampled

        name = order["name"]
        if order["do"] == "ping":
            self._say(name=name, pong=True)
        elif order["do"] == "write":
            self._written = order
            self._calls.ends = order["ends"]
        elif order["do"] == "answer_of":
            row = self._splits[order["split"]][order["index"]]
            self._say(name=name, answer=row.get("answer"), mistake=row.get("mistake"))
        elif order["do"] == "begin":
            self._calls.open(name)
            row = self._splits[order["split"]][order["index"]]
            self._runs[name] = asyncio.create_task(self._run(name, row))
        elif order["do"] == "answer":
            self._calls.answer(name, Sampled(order["tokens"], order["finish"]))
        elif order["do"] == "stop":
            self._stopped.add(name)
            self._calls.answer(name, Sampled([self._written["ends"][0]], "length"))
        elif name in self._runs:
            self._runs[name].cancel()

    async def _run(self, name: str, row: dict[str, Any]) -> None:
        """Run one episode (rule 1)."""
        from model_calls import EPISODE, MODEL
        from verifiers.v1.configs.client import TrainClientConfig
        from verifiers.v1.types import SamplingConfig

        try:
            client = TrainClientConfig(
                base_url=self._url,
                headers=self._calls.headers,
                api_key_var="ECHO2_HAS_NO_KEY",
                renderer=self._written["renderer"],
                renderer_model_name=self._written["model"],
            )
            sampling = SamplingConfig.model_validate({"temperature": 1.0, "top_p": 1.0, EPISODE: name})
            episode = await self._client.run(client=client, model=MODEL, sampling=sampling, task_data=row)
            self._say(name=name, **self._outcome(name, episode))
        except asyncio.CancelledError:
            pass
        except Exception as error:  # foreign code, and a server that answers what it likes
            self._say(name=name, fault=self._faults.get(name) or told_of(error))
        finally:
            self._calls.close(name)
            self._runs.pop(name, None)
            self._faults.pop(name, None)
            self._stopped.discard(name)

    def _outcome(self, name: str, episode: Any) -> dict[str, Any]:
        """Return what an episode that ended has to say."""
        from rollout_stops import FAULT_STOP, TOO_LONG

        if fault := self._faults.get(name):
            return {"fault": fault}
        if any(trace.stop_condition == TOO_LONG for trace in episode.traces):
            return {"fault": FAULT_STOP}
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            return {"fault": f"{errors[-1].type}: {errors[-1].message}"}
        traces = [trace for trace in episode.traces if any(node.sampled for node in trace.nodes)]
        if len(traces) != 1 or not traces[0].rewards:
            return {"fault": "it gave no reward" if len(traces) == 1 else f"it has {len(traces)} traces of the policy"}
        sampled = list(_sampled_tokens(traces[0]))
        return {"reward": traces[0].reward, "sampled": sampled[:-1] if name in self._stopped else sampled}

    def _say_call(self, name: str, tokens: list[int]) -> None:
        self._say(name=name, called=tokens)

    def _note_refusal(self, name: str, fault: str) -> None:
        self._faults[name] = fault

    def _say(self, **told: Any) -> None:
        if "fault" in told:
            told["fault"] = told["fault"][:MOST_FAULT]
        self._out.write(json.dumps(told) + "\n")
        self._out.flush()


def _sampled_tokens(trace: Any) -> Iterator[list[int]]:
    """Yield the sampled tokens of each of the policy's turns, in order."""
    for node in trace.nodes:
        if node.sampled:
            yield [token for token, by_policy in zip(node.token_ids, node.mask, strict=True) if by_policy]


def _present(wanted: str) -> str:
    """Return the version of verifiers that this Python has. Raises `Refused`."""
    try:
        return importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        raise Refused(
            f"the Python at {sys.executable} has no verifiers: install verifiers=={wanted} there, or leave out python "
            "in the file and run `make verifiers`"
        ) from None


def main() -> None:
    """Serve the settings on the command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what foreign code prints is no message
    settings = json.loads(sys.argv[1])
    sys.path[1:1] = settings["path"]
    try:
        present = _present(settings["version"])
        if present != settings["version"]:
            raise Refused(f"it has verifiers {present}, and this echo2 works with {settings['version']} alone")
        asyncio.run(Served(settings, out).serve())
    except Exception as error:  # of the taskset's code too
        out.write(json.dumps({"fault": told_of(error)[:MOST_FAULT]}) + "\n")
        out.flush()
        sys.exit(1)


if __name__ == "__main__":
    main()
