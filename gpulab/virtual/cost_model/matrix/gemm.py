"""Matrix products and decompositions: arithmetic units, alignment, tiling, and the resulting kernels."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.gemm_and_memory_time import (
    GemmShape,
    GemmUnits,
    Tiling,
    fastest_tiling,
    float32_units,
    memory_pass_ns,
    tensor_core_units,
)
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.matrix import gemm_names
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import HALF_DTYPES, bytes_per_element, c_type, element_count
from gpulab.virtual.op_log.ops import Op, TensorInfo

_LAYOUTS = {(True, False): "tn", (True, True): "nn", (False, True): "nt", (False, False): "tt"}
DECOMPOSITION_COLUMN_NS = 10_000.0  # per column of a decomposition: two or three small kernels; a guess


def product_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of mm, addmm, bmm, baddbmm and similar; none if the tensors do not form a product."""
    if op.name == "aten::_grouped_mm":
        left, right = op.inputs[0], op.inputs[1]
        return gemm_kernels(op, _grouped_shape(left, right, op.outputs[0]), spec, left=left, right=right)
    factors = _factors(op)
    if factors is None:
        return ()
    left, right = factors
    shape = _shape(left, right)
    if shape is None or not shape.flops:
        return ()
    return gemm_kernels(op, shape, spec, left=left, right=right)


def _factors(op: Op) -> tuple[TensorInfo, TensorInfo] | None:
    """Return the two tensors that are multiplied: the last two inputs, after an optional bias."""
    if len(op.inputs) < 2:
        return None
    for first in range(len(op.inputs) - 1):
        pair = op.inputs[first], op.inputs[first + 1]
        if _shape(*pair) is not None and (first > 0 or "add" not in op.name.partition("::")[2] or len(op.inputs) == 2):
            return pair
    return None


def _shape(left: TensorInfo, right: TensorInfo) -> GemmShape | None:
    a, b = left.sizes, right.sizes
    if len(a) == len(b) == 3 and a[0] == b[0] and a[2] == b[1]:
        return GemmShape(a[0], a[1], a[2], b[2])
    if len(a) == len(b) == 2 and a[1] == b[0]:
        return GemmShape(1, a[0], a[1], b[1])
    if len(a) == 2 and len(b) == 1 and a[1] == b[0]:
        return GemmShape(1, a[0], a[1], 1)
    if len(a) == len(b) == 1 and a == b:
        return GemmShape(1, 1, a[0], 1)
    return None


def _grouped_shape(left: TensorInfo, right: TensorInfo, out: TensorInfo) -> GemmShape:
    """Return the product of each of several equal groups; the dimension that is divided has two sizes, not three."""
    a, b = left.sizes, right.sizes
    groups = out.sizes[0] if len(out.sizes) == 3 else max(a, b, key=len)[0]
    rows, inner, columns = a[-2], a[-1], b[-1]
    if len(a) == len(b) == 2:
        inner = -(-inner // groups)
    elif len(a) == 2:
        rows = -(-rows // groups)
    elif len(b) == 2:
        columns = -(-columns // groups)
    return GemmShape(groups, rows, inner, columns)


def gemm_kernels(op: Op, shape: GemmShape, spec: GpuSpec, *, left: TensorInfo, right: TensorInfo) -> tuple[Kernel, ...]:
    """Return the kernels of a matrix product of this shape, for the dtypes and layouts of its factors."""
    dtype, element_bytes = left.dtype, bytes_per_element(left)
    layout = _LAYOUTS[left.contiguous, right.contiguous]
    traffic_bytes = shape.batch * element_bytes * float(
        shape.rows * shape.inner + shape.inner * shape.columns + shape.rows * shape.columns
    )  # fmt: skip
    batched = shape.batch > 1
    if min(shape.rows, shape.columns) == 1 and not batched:
        return (_vector(shape, dtype, traffic_bytes, spec),)
    align = _alignment(shape, left, right, element_bytes)
    engine, on_tensor_cores = _engine(op, dtype, align, spec)
    # From Hopper on, split-K needs no separate reduction kernel.
    tiles = fastest_tiling(
        shape, spec, engine, traffic_bytes, reduce_kernel=not (on_tensor_cores and spec.generation >= 90)
    )
    name = _name(spec, dtype, tiles, layout, align, on_tensor_cores)
    of = OpClass.BATCHED if batched else OpClass.TENSOR_PRODUCT if on_tensor_cores else OpClass.PRODUCT
    shared = 147_456 if on_tensor_cores and spec.generation >= 80 else 32_768
    main = Kernel(name, tiles.ns, tiles.blocks, 256 if tiles.rows * tiles.columns >= 8192 else 128, 168, shared, of)
    if not tiles.split_k_reduce_ns:
        return (main,)
    blocks = max(1, shape.batch * shape.rows * shape.columns // 512)
    return main, Kernel(gemm_names.split_k_reduce_name(dtype), tiles.split_k_reduce_ns, blocks, 512, 40, 0, of)


def _vector(shape: GemmShape, dtype: str, traffic_bytes: float, spec: GpuSpec) -> Kernel:
    """Return the kernel of a matrix-vector product, whose time is that of reading the matrix once."""
    rows = max(shape.rows, shape.columns)
    name = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>"
    if dtype in HALF_DTYPES:
        name = "void gemvNSP_kernel<__half, __half, __half, float, 1, 32, 4, 1024>"
    blocks = max(1, rows // 4)
    dur_ns = memory_pass_ns(traffic_bytes, spec, 0.8 * kernel_rates(spec).streaming, fixed_factor=2.0)
    return Kernel(name, dur_ns, blocks, 128, 40, 0, OpClass.PRODUCT)


def _alignment(shape: GemmShape, left: TensorInfo, right: TensorInfo, element_bytes: int) -> int:
    """Return the elements per vector load that all three matrices allow, by the lengths of their rows."""
    lengths = (
        shape.inner if left.contiguous else shape.rows,
        shape.columns if right.contiguous else shape.inner,
        shape.columns,
    )
    most = max(1, 16 // element_bytes)
    while most > 1 and any(length % most for length in lengths):
        most //= 2
    return most


def _engine(op: Op, dtype: str, align: int, spec: GpuSpec) -> tuple[GemmUnits, bool]:
    """Return the arithmetic units, and whether they are tensor cores."""
    gpu_rates = kernel_rates(spec)
    if dtype in HALF_DTYPES:
        if spec.generation < 70 or (dtype == "bfloat16" and not spec.bfloat16_flops_per_s):
            return float32_units(spec), False  # older GPUs compute bfloat16 products in float32 and round the result
        factor = 1.0 if align >= 8 else gpu_rates.misaligned[{4: 0, 2: 1}.get(align, 2)]
        return tensor_core_units(spec, tf32=False, factor=factor, misaligned=align < 8), True
    if dtype == "float32" and op.tf32 and spec.tf32_flops_per_s:
        factor = 1.0 if align >= 4 else gpu_rates.misaligned_tf32[0 if align == 2 else 1]
        return tensor_core_units(spec, tf32=True, factor=factor), True
    if dtype == "float64":
        return float32_units(spec, gpu_rates.float32_gemm * spec.float64_share), False
    if dtype.startswith("complex"):
        return float32_units(spec, gpu_rates.float32_gemm / 4), False
    return float32_units(spec), False


def _name(spec: GpuSpec, dtype: str, tiles: Tiling, layout: str, align: int, on_tensor_cores: bool) -> str:
    if on_tensor_cores and dtype in HALF_DTYPES:
        return gemm_names.half_gemm_name(spec.generation, dtype, tiles.rows, tiles.columns, layout, align)
    if on_tensor_cores:
        return gemm_names.tf32_gemm_name(spec.generation, tiles.rows, tiles.columns, layout, align)
    if dtype == "float64":
        maker = "ampere" if spec.generation >= 80 else "volta"
        return f"{maker}_dgemm_{min(tiles.rows, 64)}x{min(tiles.columns, 64)}_{layout}"
    if dtype in HALF_DTYPES:
        return gemm_names.half_gemm_name_without_tensor_cores(dtype, tiles.rows, tiles.columns, layout)
    return gemm_names.float32_gemm_name(spec.generation, tiles.rows, tiles.columns, layout, tiles.split_k)


def kernels_by_flops(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of an unknown operator with FLOPs, as a product with its output sizes and its FLOPs."""
    if not op.inputs or not op.outputs or not element_count(op.outputs[0]):
        return ()
    columns = op.outputs[0].sizes[-1] if op.outputs[0].sizes else 1
    rows = element_count(op.outputs[0]) // columns
    shape = GemmShape(1, rows, max(1, round(op.flops / 2 / rows / columns)), columns)
    return gemm_kernels(op, shape, spec, left=op.inputs[0], right=op.inputs[0])


def decomposition_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return one kernel for an SVD, QR, Cholesky, inverse or FFT; an order-of-magnitude guess."""
    most = max((*op.inputs, *op.outputs), key=lambda tensor: tensor.bytes, default=None)
    if most is None or not element_count(most):
        return ()
    traffic_bytes = 4.0 * most.bytes
    ns = memory_pass_ns(traffic_bytes, spec, kernel_rates(spec).streaming, fixed_factor=2.0)
    if "fft" not in op.name and len(most.sizes) >= 2:
        size = min(most.sizes[-2:])
        many = element_count(most) // (most.sizes[-1] * most.sizes[-2])
        # Columns run in sequence, the matrices of a batch in parallel.
        ns += size * DECOMPOSITION_COLUMN_NS + many * 10.0 * size**3 / (0.1 * spec.float32_flops_per_s) * 1e9
    name = f"void cusolver_{op.name.rpartition('::')[2].strip('_')}_kernel<{c_type(most.dtype)}>"
    return (Kernel(name, ns, max(1, element_count(most) // 1024), 256, 64, 8192, OpClass.OTHER),)
