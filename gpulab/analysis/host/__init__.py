"""The host: Python code, dispatch, launches, synchronisation, garbage collection, compilation, CPU contention."""
