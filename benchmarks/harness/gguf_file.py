"""Write a snapshot as a GGUF file, for programs that read no safetensors. Needs the package gguf."""

from pathlib import Path
from typing import Any

from echo2.engines.llamacpp import architectures
from echo2.engines.llamacpp.casts import cast
from echo2.weights.snapshot import Snapshot


def write(model: Path, snapshot: Snapshot, path: Path) -> None:
    """Write the weights of a model folder in float32, with a vocabulary of invented words: llama-server needs one."""
    import gguf

    architecture = architectures.read(model)
    writer = gguf.GGUFWriter(path, architecture.name)
    for key, value in architecture.keys.items():
        if key != "general.architecture" and not key.startswith("tokenizer."):
            add: Any = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
            add(key, value)
    words = architecture.sizes["vocabulary"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(3, words))])
    writer.add_token_scores([0.0] * words)
    writer.add_token_types([2, 3, 3, *([1] * (words - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = [*architecture.matrices(), "output_norm.weight"]
    names += [
        f"blk.{n}.{norm}.weight" for n in range(architecture.sizes["layers"]) for norm in ("attn_norm", "ffn_norm")
    ]
    entries = {entry.name: entry for entry in snapshot.tensors}
    for name in names:
        source = architecture.source(name, entries)
        if source.name is None or name == "output.weight":
            continue  # tied: the file leaves it out
        entry = entries[source.name]
        values = cast(snapshot.bits(entry.name), entry.dtype, "float32", entry.name).reshape(entry.shape)
        writer.add_tensor(name, values if source.rows is None else values[source.rows])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
