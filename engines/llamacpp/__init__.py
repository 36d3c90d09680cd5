"""The engine on llama.cpp, by its C API: any GPU with Vulkan, Metal or CUDA, any CPU, and no torch."""
