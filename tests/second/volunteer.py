"""A volunteer over HTTPS that works until GROUPS are accepted and writes HOME/told.json. volunteer.py HOME INVITE
GROUPS"""

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from documents import Map, Refused, Trust, check, digest, order, pack, peer_id, read_invite, seal, unpack
from episodes import COUNTS, Episode
from https_client import Connection
from payload import applied
from policy import Policy, ends_of
from tokenizers import Tokenizer

ENGINE = "second/float32/cpu"


class Volunteer:
    """A node with one key, one run, and one loaded version."""

    def __init__(self, invite: Map) -> None:
        self.key, self.run = Ed25519PrivateKey.generate(), invite["run"]
        self.node, self.trust = self.key.public_key().public_bytes_raw(), Trust(self.run, invite["root_hash"])
        self.address = next(one for one in invite["addresses"] if "/https" in one), invite["https_key"]
        self.connection, self.kept, self.offset = Connection(*self.address), dict[bytes, bytes](), 0
        self.versions, self.receipts, self.refused = list[int](), list[bytes](), list[str]()
        self.newest, self.news, self.current = b"", threading.Event(), None
        self.greet()
        threading.Thread(target=self.listen, daemon=True).start()

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset

    def ask(self, method: str, body: bytes) -> Any:
        """Call a method; return the answer's body. Raises a Refusal."""
        return self.call(method, body)["body"]

    def ask_verdicts(self, **asked: Any) -> Any:
        """Ask for verdicts and confirm receipts, beside a request for nothing else."""
        return self.call("verdicts", b"", verdicts=asked)["verdicts"]

    def call(self, method: str, body: bytes, **beside: Any) -> Map:
        """Call a method; return the answer. Raises a Refusal."""
        request = {"recipient": self.trust.channel, "id": os.urandom(16), "method": method}
        request |= {"expires": self.now() + 90_000, "body": body, **beside}
        answer = unpack(self.connection.rpc(method, seal("request", self.run, pack(request), self.key)))
        if refusal := answer.get("refusal"):
            raise Refused(refusal["code"], refusal["sentence"], refusal.get("retry_after"))
        return answer

    def greet(self) -> None:
        """Send hello; store Roots, RunSpec, the model's files and the newest Head."""
        record = seal("peer", self.run, pack({"addresses": [], "issued": self.now()}), self.key)
        tasks = [{"name": name, "version": version} for name, version in COUNTS]
        hello = {"protocols": [1, 3], "software": "second 1", "name": "second", "engine": ENGINE, "device": "numpy"}
        welcome = unpack(self.ask("hello", pack({**hello, "tasks": tasks, "record": record})))
        self.offset = welcome["now"] - time.time_ns() // 1_000_000
        self.trust.take_roots(welcome["roots"], self.now())
        self.spec = self.trust.open(welcome["runspec"], "runspec")
        rule = "gumbel-splitmix64/1" if self.spec.get("temperature", 1000) == 1000 else "gumbel-splitmix64/2"
        check((self.spec["run"], self.spec["sampling"]) == (self.run, rule), "another run")
        assets = {asset["name"]: self.connection.payload(asset["manifest"]) for asset in self.spec["assets"]}
        self.config = json.loads(assets["config.json"])
        self.text = Tokenizer.from_str(assets["tokenizer.json"].decode())

    def listen(self) -> None:
        """Follow the topic of Heads, over a connection of its own."""
        tag, connection = "", Connection(*self.address)
        while True:
            status, data, headers = connection.ask("GET", f"/echo2/1/topic/echo2/{self.run.hex()}/head", known=tag)
            if status == 200:
                tag, self.newest = headers["ETag"], data
                self.news.set()
            elif status != 304:
                time.sleep(0.5)

    def documents(self, hashes: list[bytes]) -> dict[bytes, bytes]:
        """Return documents by hash; each is requested once."""
        missing = [name for name in hashes if name not in self.kept]
        for first in range(0, len(missing), 64):
            part = missing[first : first + 64]
            documents = unpack(self.connection.rpc("documents", pack({"hashes": part})))["documents"]
            self.kept |= {
                name: data for name, data in zip(part, documents, strict=True) if data and digest(data) == name
            }
        return self.kept

    def follow(self) -> None:
        """Load the newest known version."""
        check(self.news.wait(30), "no Head was heard")
        head = self.trust.take_head(self.newest, self.now())
        if order(head) == order(self.trust.version or head) and self.current:
            return
        index = self.documents([head["version_hash"], head["index_hash"]])[head["index_hash"]]
        self.trust.take_version(head, self.kept[head["version_hash"]])
        edges = self.trust.take_edges(index, self.documents(unpack(index)["edges"]))
        for edge in cheapest(edges, self.current.root() if self.current else None, self.trust.version["root"]):
            payload = self.connection.payload({**edge, "hash": edge["payload_hash"]})
            self.current = applied(payload, edge, self.current if "base" in edge else None)
        self.policy = Policy(self.config, self.spec, self.current)
        self.versions.append(head["version"])
        times = {"heard": 0, "complete": 0, "applied": 0}
        self.ask("acknowledge", pack({"era": head["era"], "version": head["version"], **times}))

    def work(self) -> None:
        """Work on one group, from its lease to its receipt."""
        current, nonce = {name: self.trust.version[name] for name in ("era", "version", "root")}, os.urandom(16)
        lease = self.trust.open(self.ask("lease", pack({"nonce": nonce, **current, "engine": ENGINE})), "lease")
        self.check_lease(lease, {**current, "nonce": nonce, "node": self.node})
        posed = lease["task"], lease["task_version"], "train", lease["index"]
        check(self.tokens(Episode(*posed).prompt) == lease["prompt"], "another prompt than the task's")
        rollouts = [self.policy.rollout(lease, seed, partial(self.reply, Episode(*posed))) for seed in lease["seeds"]]
        body = pack({"lease": lease["id"], **current, "rollouts": rollouts})
        if answer := self.ask("submit", body):
            received = self.trust.open(answer, "received")
            check((received["lease"], received["submission_hash"]) == (lease["id"], digest(body)), "another Received")
        while (sealed := self.ask_verdicts(leases=[lease["id"]])["receipts"][0]) is None:
            time.sleep(0.1)
        receipt = self.trust.open(sealed, "receipt")
        said = receipt["run"], receipt["node"], receipt["lease"], receipt["submission_hash"]
        check(said == (self.run, self.node, lease["id"], digest(body)), "a Receipt of something else")
        weight = sum((2000 * (len(lease["prompt"]) + len(one["tokens"])) + 128) // 256 for one in rollouts)
        if receipt["verdict"] == "accepted":
            check(receipt["weight"] == weight, f"{receipt['weight']} milli-RE for {weight}")
            self.receipts.append(sealed)
        else:
            self.refused.append(f"{receipt['code']}: {receipt['reason']}")
        self.ask_verdicts(leases=[], confirmed=[lease["id"]])

    def check_lease(self, lease: Map, wanted: Map) -> None:
        check({name: lease[name] for name in wanted} == wanted, "a lease of another version, node or ask")
        task, prompt, seeds = {"name": lease["task"], "version": lease["task_version"]}, lease["prompt"], lease["seeds"]
        posed = any(task.items() <= one.items() for one in self.spec["tasks"])
        check(posed and 1 <= lease["limit"] <= self.spec["limit"], "another task or limit")
        check(len(seeds) == len(set(seeds)) == self.spec["group_size"], "seeds that are not the group's")
        check(prompt and max(prompt) < self.spec["vocabulary"], "a prompt that is none")
        check(self.now() < lease["expires"], "the lease has expired")

    def reply(self, episode: Episode, sampled: list[int]) -> list[int] | None:
        told = sampled[: len(sampled) - (sampled[-1] in ends_of(self.spec))]  # without its end
        given = episode.reply(self.text.decode(told, skip_special_tokens=False))
        return None if given is None else self.tokens(given)

    def tokens(self, text: str) -> list[int]:
        return self.text.encode(text, add_special_tokens=False).ids


def cheapest(edges: list[Map], root: bytes | None, wanted: bytes) -> list[Map]:
    """Return the chain of edges with the fewest payload bytes, from the present version or from none (Bellman-Ford)."""
    best: dict[bytes | None, tuple[int, list[Map]]] = {None: (0, []), root: (0, [])}
    for edge in edges * len(edges):
        cost, chain = best.get(edge.get("base_root"), (1 << 62, []))
        if cost + edge["length"] < best.get(edge["root"], (1 << 62, []))[0]:
            best[edge["root"]] = cost + edge["length"], [*chain, edge]
    check(wanted in best, "no chain leads to the version")
    return best[wanted][1]


def main(home: Path, invite: str, groups: int) -> None:
    volunteer, finished = Volunteer(read_invite(invite)), False
    while len(volunteer.receipts) < groups and not finished:
        try:
            volunteer.follow()
            volunteer.work()
        except Refused as refusal:
            finished, wait = refusal.args[0] == "finished", refusal.args[-1]
            if not finished and not isinstance(wait, int):
                raise
            time.sleep((wait or 0) / 1000)
        told = {"peer": peer_id(volunteer.node), "versions": volunteer.versions, "refused": volunteer.refused}
        told |= {"received": volunteer.connection.received, "receipts": [one.hex() for one in volunteer.receipts]}
        (home / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
