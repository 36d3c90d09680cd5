"""The tiny model, which is a Qwen3, in numpy, and seeded sampling: docs/protocol/weights.md and sampling.md."""

import hashlib
from collections.abc import Callable

import numpy as np
from documents import Map, check
from payload import Array, Snapshot

F32 = np.float32
GOLDEN, MIX_1, MIX_2 = (np.uint64(w) for w in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Policy:
    """Weights of one version, widened to float32."""

    def __init__(self, config: Map, spec: Map, snapshot: Snapshot) -> None:
        check(config["model_type"] == "qwen3", f"a model of type {config['model_type']}")
        self._config, self._weights, self._ends = config, dict[str, Array](), ends_of(spec)
        self._temperature = spec.get("temperature", 1000)
        for tensor, data in snapshot.spans():
            check(tensor["dtype"] == "BF16", f"a tensor of {tensor['dtype']}")
            wide = data.view("<u2").astype("<u4") << 16
            self._weights[tensor["name"]] = wide.view("<f4").reshape(tensor["shape"])
        for name, target in snapshot.aliases.items():
            self._weights[name] = self._weights[target]
        theta = (config.get("rope_parameters") or config)["rope_theta"]
        self._rates = 1 / theta ** (np.arange(0, config["head_dim"], 2, dtype=F32) / F32(config["head_dim"]))

    def logits(self, ids: list[int]) -> Array:
        """Return the logits of the last position, float32 [V]."""
        weights, config = self._weights, self._config
        heads, groups, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        length, x = len(ids), weights["model.embed_tokens.weight"][ids]
        future = np.triu(np.full((length, length), -np.inf, F32), 1)
        angles = np.arange(length, dtype=F32)[:, None] * np.concatenate([self._rates, self._rates])
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            y = self._norm(x, at + "input_layernorm")
            q, k, v = (y @ weights[f"{at}self_attn.{name}_proj.weight"].T for name in "qkv")
            q, k, v = (part.reshape(length, -1, width).swapaxes(0, 1) for part in (q, k, v))
            q = turned(self._norm(q, at + "self_attn.q_norm"), angles)
            k = turned(self._norm(k, at + "self_attn.k_norm"), angles)
            k, v = (np.repeat(part, heads // groups, axis=0) for part in (k, v))
            seen = np.exp(log_softmax(q @ k.swapaxes(1, 2) * F32(width**-0.5) + future)) @ v
            x = x + seen.swapaxes(0, 1).reshape(length, -1) @ weights[at + "self_attn.o_proj.weight"].T
            y = self._norm(x, at + "post_attention_layernorm")
            gate, up = (y @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[at + "mlp.down_proj.weight"].T
        return self._norm(x[-1], "model.norm") @ weights["lm_head.weight"].T

    def rollout(self, lease: Map, seed: bytes, reply: Callable[[list[int]], list[int] | None]) -> Map:
        """Sample a Rollout of a lease. `reply`: of a new environment, to a turn's tokens."""
        tokens, turns, logprobs = list[int](), [0], list[float]()
        while len(logprobs) < lease["limit"]:
            logits = self.logits(lease["prompt"] + tokens)
            if self._temperature != 1000:
                logits = logits * factor(self._temperature)
            token = int(np.argmax(logits + noise(seed, len(tokens), len(logits))))
            logprobs.append(min(0.0, float(log_softmax(logits)[token])))
            tokens.append(token)
            turns[-1] += 1
            if token in self._ends and len(logprobs) < lease["limit"]:
                given = reply(tokens[-turns[-1] :])
                if given is None:
                    break
                tokens += given
                turns += [len(given), 0]
        segments = [{"version": lease["version"], "root": lease["root"], "first": 0}]
        return {"tokens": tokens, "turns": turns, "logprobs": np.array(logprobs, "<f4").tobytes(), "segments": segments}

    def _norm(self, x: Array, name: str) -> Array:
        mean = (x * x).mean(-1, keepdims=True) + F32(self._config["rms_norm_eps"])
        return x / np.sqrt(mean) * self._weights[name + ".weight"]


def factor(temperature: int) -> Array:
    """Return what logits are multiplied by at a temperature, in thousandths."""
    return np.array(1000 / temperature, F32)


def ends_of(spec: Map) -> set[int]:
    """Return the tokens that end a turn."""
    return {spec["eos"], *(end for task in spec["tasks"] for end in task.get("other_ends", ()))}


def turned(x: Array, angles: Array) -> Array:
    low, high = np.split(x, 2, axis=-1)
    return x * np.cos(angles) + np.concatenate([-high, low], -1) * np.sin(angles)


def log_softmax(x: Array) -> Array:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def noise(seed: bytes, position: int, vocabulary: int) -> Array:
    """Return the Gumbel noise of each token id, float32."""
    state = int.from_bytes(hashlib.blake2b(seed + position.to_bytes(4, "little"), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        x = np.uint64(state) + (np.arange((vocabulary + 1) // 2, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        x = (x ^ (x >> np.uint64(30))) * MIX_1
        x = (x ^ (x >> np.uint64(27))) * MIX_2
    bits = (x ^ (x >> np.uint64(31))).view(np.uint32)[:vocabulary] & np.uint32(0x7FFFFFFF)
    w = np.minimum((bits.astype(F32) + F32(0.5)) * F32(2**-31), F32(1 - 2**-24))
    return -np.log(-np.log1p(-w))
