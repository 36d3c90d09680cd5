"""The engine on PyTorch and transformers: any CPU or GPU, no compiler."""
