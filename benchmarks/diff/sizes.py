"""Measure the bytes of a stream's diffs against the anchors' codecs and the entropy, with the bars. For
`benchmarks.diff`."""

from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.diff.anchors import Words, entropy, gaps_encode, pack, xor_encode
from benchmarks.diff.streams import Stream
from benchmarks.harness.bench import Claim
from echo2.weights.diff import encode
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot

MISSED: Final = 16
"""Number of versions that a peer missed, and gets by one diff."""


COLUMNS: Final = ("stream", "rho", "steps", "ours", "full", "full zstd-1", "XOR + zstd-1", "int32 gaps", "entropy")


class Jump(NamedTuple):
    """One diff over `MISSED` versions, as a share of the sum of the single diffs. `ours`: by our bytes. `bound`: by the
    entropies, about the least that a codec that codes by exponent can reach."""

    ours: float
    bound: float


class Sizes(NamedTuple):
    """Bytes, summed over the steps of a stream. `bound`: the entropies. `jump`: None for a stream of fewer than
    `MISSED` steps."""

    ours: float
    full: float
    full_zstd: float
    xor: float
    gaps: float
    bound: float
    jump: Jump | None


def sizes(stream: Stream, folder: Path) -> Sizes:
    """Encode each version from the one before, by all codecs. The weights are one flat tensor to each codec. `folder`
    holds three snapshots at most."""
    total = dict.fromkeys(("full", "full_zstd", "xor", "gaps", "bound"), 0.0)
    versions, payload = stream.versions(), folder / "payload"
    old = base = next(versions)
    first = current = written(old, folder / "0.safetensors")
    ours: list[int] = []
    jump = None
    for number, new in enumerate(versions, 1):
        snapshot = written(new, folder / f"{number}.safetensors")
        ours.append(encode(current, snapshot, payload).length)
        total["full"] += new.nbytes
        total["full_zstd"] += len(pack(new)[0])
        total["xor"] += sum(map(len, xor_encode(old, new)))
        total["gaps"] += sum(map(len, gaps_encode(old, new)))
        total["bound"] += entropy(old, new)
        if number == MISSED:  # compared with the part of the chain that it replaces
            jump = Jump(encode(first, snapshot, payload).length / sum(ours), entropy(base, new) / total["bound"])
        if current is not first:
            current.path.unlink()
        old, current = new, snapshot
    return Sizes(ours=sum(ours), **total, jump=jump)


def row(stream: Stream, measured: Sizes) -> tuple[object, ...]:
    """Return the table's row under `COLUMNS`."""
    return stream.name, f"{stream.rho:.2%}", len(stream.steps), *(round(size) for size in measured[:-1])


def written(bits: Words, path: Path) -> Snapshot:
    with writing_snapshot(path, [TensorEntry(name="w", dtype="BF16", shape=bits.shape)], {}) as writer:
        writer.write(bits)
        writer.finish()
    return Snapshot(path)


def size_claims(stream: Stream, measured: Sizes) -> list[Claim]:
    """Return the claims about sizes. Some bars depend on rho, the share of the weights that a step changes."""
    rho = stream.rho
    name = f"{stream.name} (rho {rho:.2%})"
    least_xor = 3.0 if rho >= 0.0035 else 2.8
    claims = [
        Claim(f"{name}, bytes of full over ours", measured.full / measured.ours, "full", 200 if rho <= 0.01 else 130),
        Claim(f"{name}, bytes of xor over ours", measured.xor / measured.ours, "XOR + zstd-1", least_xor),
        Claim(f"{name}, bytes of gaps over ours", measured.gaps / measured.ours, "int32 gaps + bf16 + zstd-1", 3.2),
        Claim(
            f"{name}, our bytes", measured.ours / measured.bound, "entropy given the exponent",
            1.06 if rho >= 0.0035 else 1.08, at_most=True,
        ),
    ]  # fmt: skip
    if measured.jump is not None:
        chain = f"their chain (the entropies: {measured.jump.bound:.3f})"
        claims.append(Claim(f"{name}, {MISSED} missed versions", measured.jump.ours, chain, 0.45, at_most=True))
    return claims
