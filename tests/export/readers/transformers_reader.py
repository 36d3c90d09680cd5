"""Continue texts with the transformers of this Python, greedily in float32: `transformers_reader.py FOLDER`.

The texts come as JSON on standard input; the tokens of each, prompt and continuation, go as JSON to standard output."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, (texts, number) = sys.argv[1], json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder)
model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert not any(loading[part] for part in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
answers = []
for text in texts:
    given = tokenizer(text, return_tensors="pt")
    out = model.generate(
        given["input_ids"], attention_mask=given["attention_mask"], do_sample=False, max_new_tokens=number
    )
    prompt = given["input_ids"].shape[1]
    answers.append([out[0, :prompt].tolist(), out[0, prompt:].tolist()])
json.dump(answers, sys.stdout)
