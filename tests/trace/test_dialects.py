"""Every dialect of Kineto since torch 1.8 means the same: categories, names, arguments, metadata."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from gpulab import trace
from gpulab.tables import EventKind
from gpulab.trace.columns.categories import event_family, kind_of
from tests.support.runs.written_traces import kinds, read, x


def test_categories_of_2021_are_classified_like_current_ones():
    old = read(
        x("Operator", "aten::add", 1, 1, tid="7"),
        x("Operator", "AddmmBackward", 2, 1, tid="7"),
        x("Operator", "Optimizer.step#SGD.step", 3, 1, tid="7"),
        x("Operator", "ProfilerStep#3", 0, 9, tid="7"),
        x("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 4, 1, tid="7"),
        x("Runtime", "cudaLaunchKernel", 5, 1, tid="7", correlation=8),
        x("Kernel", "gemm", 6, 1, pid=0, tid="stream 7", device=0, stream=7, correlation=8, **{"external id": 3}),
        x("Memcpy", "Memcpy HtoD (Pageable -> Device)", 7, 1, pid=0, tid="stream 7", device=0, stream=7, bytes=12),
        x("Memset", "Memset (Device)", 8, 1, pid=0, tid="stream 7", device=0, stream=7, bytes=4),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": "7", "args": {"name": "thread 7 (python)"}},
    )
    assert kinds(old) == {
        "aten::add": EventKind.OP,
        "AddmmBackward": EventKind.OP,
        "Optimizer.step#SGD.step": EventKind.ANNOTATION,
        "ProfilerStep#3": EventKind.STEP,
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": EventKind.LOADER,
        "cudaLaunchKernel": EventKind.LAUNCH,
        "gemm": EventKind.KERNEL,
        "Memcpy HtoD (Pageable -> Device)": EventKind.MEMCPY,
        "Memset (Device)": EventKind.MEMSET,
    }
    assert old.threads == ("thread 7 (python)",)


def test_host_work_with_a_stream_argument_is_not_device_work():
    run = read(x("cpu_op", "triton_poi_fused_0", 1, 5, stream=0, grid="grid(1,)"))
    assert kinds(run) == {"triton_poi_fused_0": EventKind.OP}
    assert run.event_rows["stream"].tolist() == [-1]
    assert run.event_rows["thread"].tolist() == [0]


def test_steps_come_from_the_host_only():
    run = read(x("user_annotation", "ProfilerStep#1", 1, 9), x("gpu_user_annotation", "ProfilerStep#1", 2, 7, stream=7))
    assert len(run.event_rows) == 1
    assert run.event_rows["start_ns"].tolist() == [0]
    assert run.event_rows["dur_ns"].tolist() == [9000]


@pytest.mark.parametrize("category", ["Operator", "cpu_op", "user_annotation"])
@pytest.mark.parametrize(
    ("iterator", "workers", "fact"),
    [("_SingleProcessDataLoaderIter", 0, "single-process"), ("_MultiProcessingDataLoaderIter", None, "multi-process")],
)
def test_a_dataloader_is_recognised_by_its_name_in_any_category(category, iterator, workers, fact):
    run = read(x(category, f"enumerate(DataLoader)#{iterator}.__next__", 1, 9))
    assert run.event_rows["kind"].tolist() == [EventKind.LOADER]
    assert [loader.workers for loader in run.loaders] == [workers]
    assert run.facts["loader"] == fact


def test_amd_writes_numbers_as_text_and_copies_as_kernels():
    run = read(
        x("cuda_runtime", "hipMemcpyAsync", 1, 1, correlation=3, bytes="4096"),
        x("kernel", "__amd_rocclr_copyBuffer", 2, 1, pid=2, tid=0, device=2, stream="0", correlation=3, bytes="4096"),
        x("kernel", "__amd_rocclr_fillBufferAligned", 3, 1, pid=2, tid=0, device=2, stream=0, correlation=4),
        x("kernel", "Cijk_Ailk_Bljk_MT64x64", 4, 1, pid=2, tid=0, device=2, stream=0, correlation=5),
        x("cuda_runtime", "hipExtModuleLaunchKernel", 5, 1, correlation=5, cid=1),
        deviceProperties=[
            {"id": 2, "name": "AMD Instinct MI300X", "warpSize": 64, "computeMajor": 9, "computeMinor": 4}
        ],
        hip_runtime_version=60443483,
    )
    assert list(kinds(run).values()) == [
        EventKind.COPY_CALL,
        EventKind.MEMCPY,
        EventKind.MEMSET,
        EventKind.KERNEL,
        EventKind.LAUNCH,
    ]
    assert run.event_rows["bytes"].tolist() == [4096, 4096, -1, -1, -1]
    assert run.event_rows["stream"].tolist() == [-1, 0, 0, 0, -1]
    assert not len(run.grid_rows)
    assert run.machine.gpus[0].compute_capability is None
    assert run.facts["hip_runtime"] == "6.4.43483"


def test_a_kernel_without_a_launch_is_kept():
    run = read(x("kernel", "k", 1, 2, pid=0, tid=7, device=0, stream=7, correlation=99))
    assert len(run.event_rows.of_kind(EventKind.KERNEL)) == 1


def test_a_kernel_carries_its_shape_and_occupancy():
    args = {"device": 1, "stream": 20, "correlation": 5, "grid": [8, 16, 5], "block": [128, 2, 1]}
    run = read(
        x("kernel", "k", 1, 2, pid=0, tid=7, **args, **{"est. achieved occupancy %": 25}),
        x("kernel", "unknown occupancy", 2, 2, pid=0, tid=7, **args, **{"est. achieved occupancy %": -1}),
        x("kernel", "no occupancy", 3, 2, pid=0, tid=7, **args),
        x("kernel", "zero occupancy", 4, 2, pid=0, tid=7, **args, **{"est. achieved occupancy %": 0}),
    )
    rows = run.event_rows
    grids = run.grid_rows
    assert grids["event"].tolist() == [0, 1, 2, 3]
    assert grids["grid"].tolist() == [640] * 4
    assert grids["block"].tolist() == [256] * 4
    assert rows["device"].tolist() == [1] * 4
    assert rows["stream"].tolist() == [20] * 4
    assert grids["occupancy_frac"].tolist() == pytest.approx([0.25, np.nan, np.nan, 0.0], nan_ok=True)


def test_sync_records_are_not_device_work():
    run = read(x("cuda_sync", "Event Sync", 1, 5, pid=0, tid=7, device=0, stream=4294967295, correlation=0))
    assert kinds(run) == {"Event Sync": EventKind.SYNC_RECORD}
    assert run.event_rows["stream"].tolist() == [-1]
    assert run.event_rows["correlation"].tolist() == [-1]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("cudaLaunchKernel", EventKind.LAUNCH),
        ("cudaLaunchKernelExC_v11060", EventKind.LAUNCH),
        ("cuLaunchKernelEx", EventKind.LAUNCH),
        ("cudaGraphLaunch", EventKind.LAUNCH),
        ("hipExtModuleLaunchKernel", EventKind.LAUNCH),
        ("cudaLaunchHostFunc", EventKind.RUNTIME),
        ("cudaDeviceSynchronize", EventKind.SYNC),
        ("cudaEventSynchronize", EventKind.SYNC),
        ("hipStreamSynchronize", EventKind.SYNC),
        ("cudaStreamWaitEvent", EventKind.RUNTIME),
        ("cudaEventQuery", EventKind.RUNTIME),
        ("cudaMemcpyAsync", EventKind.COPY_CALL),
        ("cuMemcpyHtoDAsync_v2", EventKind.COPY_CALL),
        ("hipMemsetAsync", EventKind.COPY_CALL),
        ("cudaMalloc", EventKind.ALLOC),
        ("cudaFree", EventKind.ALLOC),
        ("cudaHostAlloc", EventKind.ALLOC),
        ("cuMemCreate", EventKind.ALLOC),
        ("hipFree", EventKind.ALLOC),
        ("cudaMemGetInfo", EventKind.RUNTIME),
        ("cudaGraphAddMemcpyNode", EventKind.RUNTIME),
        ("INVALID", EventKind.RUNTIME),
    ],
)
def test_runtime_calls_are_classified_by_name(call, kind):
    assert kind_of(event_family("cuda_runtime"), call) is kind


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", EventKind.COLLECTIVE),
        ("void multimem_all_reduce_kernel<c10::BFloat16>", EventKind.COLLECTIVE),
        ("void vllm::cross_device_reduce_1stage<float, 2>", EventKind.COLLECTIVE),
        ("reduce_scatter_bf16", EventKind.COLLECTIVE),
        ("void at::native::reduce_kernel<512, 1>", EventKind.KERNEL),
        ("small_reduce_kernel", EventKind.KERNEL),
        ("vectorized_gather_kernel", EventKind.KERNEL),
    ],
)
def test_collective_kernels_are_recognised_by_name(kernel, kind):
    assert kind_of(event_family("kernel"), kernel) is kind


def test_other_categories_and_phases():
    run = read(
        x("python_function", "train.py(3): loop", 1, 5),
        x("overhead", "Command Buffer Full", 2, 1, pid=-1, tid=0),
        x("cuda_driver", "cuLaunchKernel", 3, 1, correlation=1),
        x("xpu_runtime", "urEnqueueKernelLaunch", 4, 1, correlation=2),
        x("Trace", "PyTorch Profiler (0)", 0, 99, pid="Spans", tid="PyTorch Profiler"),
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "args": {"Bytes": 3}},
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 3, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        x("mtia_ccp_events", "unheard of", 6, 1),
    )
    assert list(kinds(run).values()) == [EventKind.PYTHON, EventKind.OVERHEAD, EventKind.LAUNCH, EventKind.LAUNCH]
    assert run.threads == ("thread 1", "profiler")
    assert [gap.what for gap in run.recording.left_out] == ["1 event of category 'mtia_ccp_events'"]


def test_the_metadata_become_machine_rank_options_and_facts():
    run = read(
        x("cpu_op", "aten::add", 1, 1),
        deviceProperties=[
            {
                "id": 0,
                "name": "NVIDIA H100",
                "totalGlobalMem": 85018279936,
                "computeMajor": 9,
                "computeMinor": 0,
                "numSms": 132,
            }
        ],
        distributedInfo={"backend": "nccl", "rank": 5, "world_size": 8},
        record_shapes=1,
        with_stack=0,
        cuda_runtime_version=12040,
        host_name="node7",
    )
    gpu = run.machine.gpus[0]
    assert (gpu.index, gpu.name, gpu.memory_bytes, gpu.multiprocessors) == (0, "NVIDIA H100", 85018279936, 132)
    assert gpu.compute_capability == "9.0"
    assert run.rank == 5
    assert run.recording.options == ("record_shapes",)
    assert run.recording.activities == ("cpu",)
    assert run.facts == {"cuda_runtime": "12.4", "host": "node7", "world_size": "8", "distributed_backend": "nccl"}


def test_a_device_without_properties_is_an_unknown_gpu():
    assert read(x("kernel", "k", 1, 1, device=0)).source.device == "unknown GPU"


def test_threads_of_equal_name_are_distinguished_by_process():
    run = read(x("cpu_op", "a", 1, 1, pid=1, tid=5), x("cpu_op", "b", 2, 1, pid=2, tid=5))
    assert run.threads == ("thread 5 of process 1", "thread 5 of process 2")


def test_a_trace_without_events_is_a_run_without_events():
    run = read(schemaVersion=1)
    assert len(run.event_rows) == 0
    assert run.span_ns == 0
    assert run.recording.windows_ns == ()


def test_a_bare_array_of_events_is_a_trace():
    assert len(trace.read(json.dumps([x("cpu_op", "a", 1, 1)]).encode()).event_rows) == 1


def test_a_run_has_the_name_of_its_file(tmp_path):
    text = json.dumps({"traceEvents": [x("cpu_op", "a", 1, 1)]}).encode()
    path = tmp_path / "host_1.pt.trace.json.gz"
    path.write_bytes(gzip.compress(text))
    assert trace.read(path).name == "host_1"
    assert trace.read(str(path), name="before").name == "before"
    assert trace.read(text).name == "trace"
