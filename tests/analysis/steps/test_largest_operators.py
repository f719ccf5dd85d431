"""The operators that take the most time: each moment counts for one operator, on a GPU as the time of its kernels."""

import pytest

import gpulab
from gpulab.analysis.steps.largest_operators import largest_operators
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from tests.support.runs.made_runs import event, launched_kernel, loader_call, on_gpu, run_of, stepped

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def costs(run):
    diagnosis = gpulab.diagnose(run)
    operators = largest_operators(diagnosis.run, diagnosis.steps, diagnosis.ledger)
    return {cost.name: (cost.calls_per_step, pytest.approx(cost.frac)) for cost in operators}


def cpu_step(start_ms):
    return [
        loader_call(start_ms, 20.0),
        event(EventKind.OP, "aten::stack", start_ms + 1, 10.0),
        event(EventKind.OP, "aten::linear", start_ms + 20, 10.0),
        event(EventKind.OP, "aten::addmm", start_ms + 21, 8.0),
        event(EventKind.OP, "aten::linear", start_ms + 30, 5.0),
        event(EventKind.OP, NODE, start_ms + 40, 30.0),
        event(EventKind.OP, "aten::mm", start_ms + 41, 25.0),
        event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", start_ms + 80, 12.0),
        event(EventKind.OP, "aten::add_", start_ms + 81, 2.0),
        event(EventKind.OP, "aten::mul_", start_ms + 84, 2.0),
    ]


def test_on_a_cpu_time_counts_for_the_outermost_operator_and_for_no_operator_of_a_loader():
    assert costs(run_of(stepped(cpu_step))) == {
        "AddmmBackward0": (1.0, 0.30),
        "aten::linear": (2.0, 0.15),
        "SGD.step": (1.0, 0.12),
    }


def gpu_step(start_ms):
    number = round(start_ms)
    nodes = [
        event(EventKind.OP, NODE, start_ms, 1.0, thread=1),
        {**event(EventKind.LAUNCH, "cudaLaunchKernel", start_ms + 0.5, 0.01, thread=1), "correlation": number + 9},
        event(EventKind.KERNEL, "gemm", start_ms + 70, 25.0, correlation=number + 9),
    ]
    return [
        event(EventKind.OP, "aten::linear", start_ms, 2.0),
        *launched_kernel("gemm", start_ms + 5, 40.0, number=number, op="aten::addmm", called_ms=start_ms + 0.5),
        *launched_kernel("bias", start_ms + 45, 5.0, number=number + 1, op="aten::add_", called_ms=start_ms + 1.0),
        *launched_kernel("relu", start_ms + 50, 10.0, number=number + 2, op="aten::relu", called_ms=start_ms + 3.0),
        *nodes,
    ]


def test_on_a_gpu_an_operator_takes_the_time_of_the_kernels_that_it_launched_on_its_thread():
    assert costs(on_gpu(stepped(gpu_step))) == {
        "aten::linear": (1.0, 0.45),
        "AddmmBackward0": (1.0, 0.25),
        "aten::relu": (1.0, 0.10),
    }


def test_kernels_that_were_launched_a_step_earlier_count_for_their_operators():
    def late(start_ms):
        number = round(start_ms) + 1
        return launched_kernel("gemm", start_ms + 10, 60.0, number=number, op="aten::mm", called_ms=start_ms - 90)

    assert costs(on_gpu(stepped(late)))["aten::mm"] == (1.0, 0.6)


def test_the_part_of_a_kernel_outside_the_complete_steps_does_not_count():
    def long(start_ms):
        number = round(start_ms) + 1
        return launched_kernel("gemm", start_ms + 40, 100.0, number=number, op="aten::mm", called_ms=start_ms + 1)

    assert costs(on_gpu(stepped(long)))["aten::mm"][1] == 1.0


def test_operators_of_other_threads_take_no_time_of_a_cpu_loop():
    def beside(start_ms):
        return [*cpu_step(start_ms), event(EventKind.OP, "aten::copy_", start_ms, 90.0, thread=1)]

    assert "aten::copy_" not in costs(run_of(stepped(beside)))


def test_on_a_cpu_the_table_covers_what_the_ledger_calls_operators():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gpulab.profile("net"):
        for batch in torch.utils.data.DataLoader(torch.randn(2000, 256), batch_size=50):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
    diagnosis = gpulab.diagnose(gpulab.runs["net"])
    operators = largest_operators(diagnosis.run, diagnosis.steps, diagnosis.ledger)
    assert {"aten::linear", "AddmmBackward0", "SGD.step"} <= {cost.name for cost in operators}
    assert diagnosis.ledger.total_frac("compute") <= sum(cost.frac for cost in operators) + 0.02
    assert sum(cost.frac for cost in operators) <= 1.0
    assert [cost.frac for cost in operators] == sorted((cost.frac for cost in operators), reverse=True)


def test_the_report_lists_them():
    text = str(report(run_of(stepped(cpu_step))))
    table = text[text.index("Operators that take the most time") :]
    rows = [line.split() for line in table.splitlines() if line.endswith(" %")]
    assert rows[0][0] == "AddmmBackward0"
    assert rows[0][1:] == ["1", "30.0", "30.0", "%"]


def test_a_trace_without_operators_has_no_table():
    kernels_only = run_of(stepped(lambda at: [event(EventKind.KERNEL, "gemm", at + 10, 50.0)]))
    assert costs(kernels_only) == {}
    assert "Operators that take the most time" not in str(report(kernels_only))
