"""What only a GPU can show; run by `make gpu-check` on a machine that has one."""

import pytest

torch = pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")

import gpulab  # noqa: E402  (after the check that torch is there)
from gpulab.sensors import describe_machine  # noqa: E402
from gpulab.tables import EventKind  # noqa: E402
from gpulab.workloads import WORKLOADS  # noqa: E402

pytestmark = pytest.mark.gpu


def matmuls(count=60, size=2048):
    x = torch.randn(size, size, device="cuda")
    for _ in range(count):
        x = torch.tanh(x @ x)
        gpulab.step()
    torch.cuda.synchronize()


def test_kernels_are_linked_to_launches_and_the_ledger_covers_the_gpu():
    with gpulab.profile("matmuls") as session:
        matmuls()
    events = session.run.event_rows
    kernels, launches = events.of_kind(EventKind.KERNEL), events.of_kind(EventKind.LAUNCH)
    assert set(kernels["correlation"].tolist()) <= set(launches["correlation"].tolist())
    diagnosis = gpulab.diagnose(session.run)
    assert diagnosis.ledger.device == "gpu"
    total = sum(diagnosis.ledger.part_ns[part.key] for part in diagnosis.ledger.parts)
    assert total.tolist() == diagnosis.ledger.step_ns.tolist()


def test_nvml_and_torch_report_the_same_gpu():
    uuids = {gpu.uuid.removeprefix("GPU-") for gpu in describe_machine().gpus}
    assert str(torch.cuda.get_device_properties(0).uuid) in uuids


def test_gpu_sensors_give_plausible_values():
    with gpulab.profile("sensed", level="sensors") as session:
        matmuls(400, 4096)
    samples = session.run.gpu_samples
    assert samples.util_frac.between(0, 1).any()
    assert (samples.power_w.dropna() > 10).all()
    assert (samples.memory_used_bytes.dropna() > 1e8).all()


@pytest.mark.parametrize(
    "workload", [workload for workload in WORKLOADS if workload.rule], ids=lambda workload: workload.name
)
def test_the_first_finding_is_the_planted_cause(workload):
    with gpulab.profile(workload.name) as session:
        workload.run(device="cuda")
    diagnosis = gpulab.diagnose(session.run)
    assert diagnosis.first is not None
    assert diagnosis.first.rule == workload.rule, diagnosis.verdict
