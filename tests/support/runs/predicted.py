"""Shared by several tests: from test_emitted."""

from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, on_gpu, stepped


def reading():
    def step(at):
        number = round(at * 10)
        return [
            *launched_kernel(
                "ampere_sgemm", at + 0.52, 7.0, number=number + 1, op="aten::mm", called_ms=at + 0.5, grid=64
            ),
            event(EventKind.OP, "aten::item", at + 1.0, 6.6),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 1.1, 0.01, correlation=number + 2),
            event(
                EventKind.MEMCPY, "Memcpy DtoH (Device -> Pageable)", at + 7.53, 0.01, correlation=number + 2, size=4
            ),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 1.12, 6.43),
            *launched_kernel(
                "softmax", at + 8.0, 0.5, number=number + 3, op="aten::softmax", called_ms=at + 7.9, grid=32
            ),
        ]

    return on_gpu(stepped(step, count=6, step_ms=10.0))
