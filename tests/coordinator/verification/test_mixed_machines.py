"""The machines that one computer stands in for, by engine and device."""

from echo2.coordinator.verification.mixed_machines import OTHER_KERNELS, TORCH_CPU, mixed_machines


def test_a_gpu_differs_by_rows_and_prompts_and_kernels_that_pytorch_can_round_as() -> None:
    for engine, kernels in (("transformers", OTHER_KERNELS.keys()), ("vllm", set())):
        machines = mixed_machines(engine, "cuda")
        assert {machine.rows for machine in machines.values()} == {8, 16, 64, 128}
        assert all(machine.threads == 1 for machine in machines.values())
        assert {name for name, machine in machines.items() if machine.env} == kernels
        assert [machine.alone for machine in machines.values()].count(True) == 1


def test_a_cpu_differs_by_threads_too_and_by_instructions_where_pytorch_computes() -> None:
    of_torch, of_another = mixed_machines("transformers", "cpu"), mixed_machines("llamacpp", "cpu")
    assert {machine.threads for machine in of_another.values()} == {1, 2}
    assert of_torch.keys() - of_another.keys() == TORCH_CPU.keys() | OTHER_KERNELS.keys()
    variables = {name for machine in TORCH_CPU.values() for name in machine.env}
    assert variables == {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"}
