"""The status of a node with two GPUs, as its control socket answers it, and a node that answers nothing else."""

from typing import Any

from echo2.node.errors import NoDaemonAnswers

STATUS: dict[str, Any] = {
    "state": "working", "blocked": "", "run": "sums", "page": "https://run.example.org/",
    "permalink": "https://run.example.org/nodes/12D3KooWQ8Xh2xnQZ7aVbV3zB6fFcKc6mTgR9yLpJ5dWqN4sEuTv",
    "node": "12D3KooWQ8Xh2xnQZ7aVbV3zB6fFcKc6mTgR9yLpJ5dWqN4sEuTv", "name": "fox", "points": 118.25, "rank": "3 of 17",
    "engines": [
        {"engine": "transformers/bfloat16/cuda", "device": "cuda:0", "hardware": "GeForce RTX 4090", "version": 41,
         "lag": 0, "rows": 32, "most_rows": 64, "rate": 812.4, "under_way": 4, "leases": 96, "restarts": 0,
         "duty": 100, "hottest": 80.0, "power": 250, "reserve": 2_000_000_000,
         "temperature": 61.0, "watts": 212.3, "memory_used": 14_200_000_000, "memory": 24_000_000_000,
         "state": "working"},
        {"engine": "transformers/bfloat16/cuda", "device": "cuda:1", "hardware": "GeForce RTX 3060", "version": 40,
         "lag": 1, "rows": 0, "most_rows": 16, "rate": 9.25, "under_way": 0, "leases": 24, "restarts": 1,
         "duty": 50, "hottest": None, "power": None, "reserve": None,
         "temperature": None, "watts": None, "memory_used": None, "memory": None,
         "state": "waiting", "why": "the engine died 7 times in a row: out of memory"},
    ],
    "leases": 120, "outbox": {"accepted": 118, "refused": 3, "received": 2, "queued": 1},
    "refused": [
        {"code": "late", "reason": "It came after its lease had expired.", "groups": 2},
        {"code": "seeded-choice", "reason": "Token 17 of rollout 2 is not the one that its seed gives.", "groups": 1},
    ],
    "received_bytes": 1_250_000_000, "sent_bytes": 310_500_000,
    "slow": False, "caps": {"uplink": 4.0, "downlink": None, "duty": 100},
    "peers": 5, "ways": {"direct": 3, "relay": 2}, "way": "direct", "reached": "through a relay, no open port",
}  # fmt: skip


class StandInNode:
    """A node that answers. `asked`: the commands that it got, in order. `away`: whether it does not answer."""

    def __init__(self, **changes: Any) -> None:
        self.status, self.asked, self.away = {**STATUS, **changes}, list[dict[str, Any]](), False

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Answer a command as the control socket does."""
        if self.away:
            raise NoDaemonAnswers("no node runs in /home/fox: start one with `echo2-node run`")
        self.asked.append(asked)
        if asked["command"] == "slow":
            self.status["slow"] = asked["slow"]
            return {"slow": asked["slow"]}
        if asked["command"] == "caps":
            self._cap(*next(iter(asked["changes"].items())), device=asked["gpu"])
            return {"changed": "until the node ends"}
        states = {"pause": "paused", "resume": "working", "finish": "finishing"}
        self.status["state"] = states.get(asked["command"], self.status["state"])
        return dict(self.status)

    def _cap(self, key: str, text: str, device: str | None) -> None:
        value = None if text == "none" else float(text)
        rows = [row | {key: value} if key == "duty" and device in (None, row["device"]) else row for row in self._rows]
        caps = self.status["caps"] if device else self.status["caps"] | {key: value}
        self.status |= {"engines": rows, "caps": caps}

    @property
    def _rows(self) -> list[dict[str, Any]]:
        return list(self.status["engines"])
