"""Read traces of JAX's profiler (XLA): HOST.trace.json.gz, as jax.profiler.trace writes it."""

from gpulab.trace.xla.reading import is_xla_trace, read_xla

__all__ = ["is_xla_trace", "read_xla"]
