"""The engine on vLLM (rules: engines.vllm.engine)."""
