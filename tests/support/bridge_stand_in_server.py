"""A stand-in for the environment server of verifiers, a script: it says what
tasks/verifiers/other_python/bridge_server.py would. A rollout is over with its first turn. A turn that begins with
`HANGS` computes for ever, one that begins with `WAITS` is never answered, one that begins with `GARBLES` is answered
behind lines that are no messages.
"""

import json
import sys
import time

HANGS, WAITS, GARBLES = 9, 8, 6
GARBAGE = "[1]", "", "null", "{", "\x00\xff", "[" * 100_000, "9" * 5_000, '{"name": 3}', '{"name": ["a"]}'
PROMPT = [4, 5]


def serve() -> None:
    print(json.dumps({"train": 10, "heldout": 10, "version": 1}), flush=True)
    for written in sys.stdin:
        order = json.loads(written)
        told = {"name": order["name"]}
        if order["do"] == "begin":
            told |= {"called": PROMPT}
        elif order["do"] == "ping":
            told |= {"pong": True}
        elif order["do"] == "answer" and order["tokens"][0] == HANGS:
            time.sleep(3600)
        elif order["do"] == "answer" and order["tokens"][0] != WAITS:
            told |= {"reward": 1.0, "sampled": [order["tokens"]]}
            if order["tokens"][0] == GARBLES:
                print(*GARBAGE, sep="\n")
        if len(told) > 1:
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    serve()
