"""Continue texts with vLLM, greedily in float32: `vllm_reader.py FOLDER`; texts and tokens as transformers_reader."""

import json
import os
import sys

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip

from vllm import LLM, SamplingParams

folder, (texts, number) = sys.argv[1], json.load(sys.stdin)
out, sys.stdout = sys.stdout, sys.stderr
llm = LLM(folder, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8, disable_log_stats=True)
answers = llm.generate(texts, SamplingParams(temperature=0.0, max_tokens=number), use_tqdm=False)
json.dump([[list(one.prompt_token_ids), list(one.outputs[0].token_ids)] for one in answers], out)
out.flush()
os._exit(0)
