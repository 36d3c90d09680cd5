"""vLLM as a subject of benchmarks.anchors: `LLM.generate`, without log-probabilities and seeds."""

import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import psutil

from benchmarks.anchors import batch_loop
from benchmarks.anchors.same_prompt import PROMPT


def main() -> None:
    import vllm

    model, limit, most = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    engine = vllm.LLM(
        model, dtype="float32", enforce_eager=True, max_num_seqs=most, max_model_len=len(PROMPT) + limit + 16,
        enable_prefix_caching=False, skip_tokenizer_init=True,
    )  # fmt: skip
    terms = vllm.SamplingParams(temperature=1.0, max_tokens=limit, ignore_eos=True, detokenize=False)

    def generate(batch: int) -> int:
        prompts = [{"prompt_token_ids": list(PROMPT)} for _ in range(batch)]
        answers = engine.generate(prompts, terms, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in answers)

    batch_loop.answer(generate, psutil.Process())


if __name__ == "__main__":
    main()
