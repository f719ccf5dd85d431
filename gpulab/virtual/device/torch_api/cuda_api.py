"""torch.cuda as on a machine with this GPU."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulab.hardware.architectures import parse_capability, threads_per_multiprocessor
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.tensors.error_messages import invalid_device_index
from gpulab.virtual.device.torch_api.patches import patch_attributes
from gpulab.virtual.device.torch_api.streams import Streams
from gpulab.virtual.device.torch_api.tensor_methods import device_with_index

if TYPE_CHECKING:
    from collections.abc import Iterator

CUDA_VERSION, CUDNN_VERSION = "12.8", 91002  # of most builds of PyTorch 2.9 and later
_LEGACY_TYPES = ("Float", "Double", "Half", "Long", "Int", "Byte")


@dataclass(frozen=True)
class DeviceProperties:
    """The result of torch.cuda.get_device_properties."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    uuid: str = str(uuid.UUID(int=0))

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


def device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a device in any form that PyTorch accepts; the only index is 0."""
    if device is None or (isinstance(device, int) and device < 0):
        return 0
    resolved = device_with_index(device)
    if resolved.type != "cuda":
        if allow_cpu and resolved.type == "cpu":
            return -1
        raise ValueError(f"Expected a cuda device, but got: {resolved}")
    return 0


def install(stack: ExitStack, spec: GpuSpec, recorder: OpRecorder, streams: Streams) -> None:
    """Patch torch.cuda until the stack is closed."""
    import torch

    gpu_info = _gpu_info(spec)
    running = _streams_and_waits(recorder, streams)
    # The program may have imported names before: patch the classes themselves, and what torch's functions call.
    streams.install(stack)
    below = {"_cuda_synchronize": running["synchronize"], "_cuda_getDeviceCount": lambda: 1,
             "_cuda_getDevice": lambda: 0, "_cuda_setDevice": lambda device: None,
             "_cuda_emptyCache": lambda: torch.cuda.empty_cache()}  # fmt: skip
    patch_attributes(stack, torch._C, **below)
    patch_attributes(
        stack,
        torch.cuda,
        **{f"{name}Tensor": _legacy_tensor_class(name) for name in _LEGACY_TYPES},
    )
    patch_attributes(stack, torch.cuda, **gpu_info, **running, **_random_functions())
    patch_attributes(stack, torch.cuda._utils, _get_device_index=device_index)
    patch_attributes(stack, torch.version, cuda=CUDA_VERSION)
    patch_attributes(
        stack,
        torch.backends.cudnn,
        is_available=lambda: True,
        version=lambda: CUDNN_VERSION,
        is_acceptable=lambda tensor: False,
    )  # fmt: skip - recurrent layers then do not flatten their weights for cuDNN
    patch_attributes(stack, torch.backends.cuda, is_built=lambda: True)
    patch_accelerator(
        stack,
        is_available=lambda: True,
        device_count=lambda: 1,
        current_accelerator=lambda check_available=False: torch.device("cuda"),
        current_device_index=lambda: 0,
        current_device_idx=lambda: 0,
        set_device_index=lambda device=None: None,
        synchronize=torch.cuda.synchronize,
        current_stream=torch.cuda.current_stream,
        set_stream=torch.cuda.set_stream,
    )
    patch_attributes(stack, torch._C, _accelerator_getAccelerator=lambda: torch.device("cuda"))
    ranges = NvtxRanges(recorder)
    patch_attributes(stack, torch.cuda.nvtx, range_push=ranges.push, range_pop=ranges.pop, range=ranges.range,
         mark=lambda msg: None, range_start=lambda msg: 0, range_end=lambda number: None)  # fmt: skip
    patch_attributes(stack, torch.cuda.random, **_random_functions())


def patch_accelerator(stack: ExitStack, **values: Any) -> None:
    """Patch torch.accelerator, which exists since PyTorch 2.6."""
    import torch

    if hasattr(torch, "accelerator"):
        patch_attributes(stack, torch.accelerator, **values)


def _gpu_info(spec: GpuSpec) -> dict[str, Any]:
    """Return the functions of torch.cuda that describe the GPU."""
    import torch

    major, minor = parse_capability(spec.compute_capability) or (0, 0)
    properties = DeviceProperties(
        spec.driver_name, major, minor, spec.usable_bytes, spec.multiprocessors, spec.l2_bytes,
        max_threads_per_multi_processor=threads_per_multiprocessor(spec.compute_capability),
    )  # fmt: skip

    def properties_of(device: Any = None) -> DeviceProperties:
        device_index(device)
        return properties

    bfloat16 = spec.bfloat16_flops_per_s is not None
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: device_with_index("cuda") and None,
        "_lazy_call": lambda callable, **kwargs: callable(),
        "_is_compiled": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: device_index(device) and None,
        "get_device_name": lambda device=None: properties_of(device).name,
        "get_device_capability": lambda device=None: (properties_of(device).major, properties_of(device).minor),
        "get_device_properties": properties_of,
        "is_bf16_supported": lambda including_emulation=True: bfloat16 or including_emulation,
        "is_tf32_supported": lambda: bfloat16,
        "can_device_access_peer": lambda device, peer_device: _no_peer(device, peer_device),
        "get_arch_list": lambda: ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "_get_device": lambda device: torch.device("cuda", device_index(device)),
        "_get_device_index": device_index,
        "ipc_collect": lambda: None,
    }


def _legacy_tensor_class(name: str) -> Any:
    """Return a legacy class like torch.cuda.FloatTensor, for creating tensors and for isinstance."""
    import torch

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.type() == f"torch.cuda.{name}Tensor"

    class OnGpu(metaclass=Kind):
        def __new__(cls, *args: Any) -> Any:
            return getattr(torch, f"{name}Tensor")(*args).cuda()

    return OnGpu


def _no_peer(device: Any, peer: Any) -> bool:
    device_index(device)
    raise invalid_device_index()


def _streams_and_waits(recorder: OpRecorder, streams: Streams) -> dict[str, Any]:
    """Return the functions of torch.cuda that synchronise, and those for streams."""

    def synchronize(device: Any = None) -> None:
        device_index(device)
        recorder.entered()
        recorder.wait("cudaDeviceSynchronize")
        recorder.left()

    def sleep(cycles: int) -> None:
        if not isinstance(cycles, int):
            raise TypeError("torch.cuda._sleep(): expected 'int'")
        recorder.entered()
        recorder.spin(cycles)
        recorder.left()

    return {
        "synchronize": synchronize,
        "current_stream": lambda device=None: streams.current,
        "default_stream": lambda device=None: streams.default,
        "set_stream": streams.set_current,
        "is_current_stream_capturing": lambda: False,
        "_sleep": sleep,
    }


def _random_functions() -> dict[str, Any]:
    """Return the random functions of torch.cuda; they store seed and state but generate no numbers."""
    import torch

    state = bytearray(16)

    def get_rng_state(device: Any = "cuda") -> Any:
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def seed(value: int = 0) -> None:
        state[:8] = (int(value) % 2**64).to_bytes(8, "little")

    def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
        state[:] = bytes(new_state.tolist())[:16].ljust(16, b"\0")

    return {
        "manual_seed": seed,
        "manual_seed_all": seed,
        "seed": seed,
        "seed_all": seed,
        "initial_seed": lambda: int.from_bytes(state[:8], "little"),
        "get_rng_state": get_rng_state,
        "get_rng_state_all": lambda: [get_rng_state()],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": lambda new_states: set_rng_state(next(iter(new_states))),
    }


class NvtxRanges:
    """torch.cuda.nvtx: named ranges, recorded as those of record_function."""

    def __init__(self, recorder: OpRecorder) -> None:
        self._recorder = recorder
        self._open: list[str] = []

    def push(self, msg: str) -> int:
        """Start a range."""
        self._recorder.range(msg, is_start=True)
        self._open.append(msg)
        return len(self._open) - 1

    def pop(self) -> int:
        """End the innermost range."""
        if not self._open:
            return -1
        self._recorder.range(self._open.pop(), is_start=False)
        return len(self._open)

    @contextmanager
    def range(self, msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        """`with torch.cuda.nvtx.range(...)`."""
        self.push(msg)
        try:
            yield
        finally:
            self.pop()
