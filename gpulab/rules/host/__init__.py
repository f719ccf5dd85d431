"""Rules about the host: Python code, dispatch, synchronisation, garbage collection, CPU threads."""
