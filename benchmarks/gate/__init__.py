"""How often `gpulab compare --fail-over` is right about live recordings: equal code, and code that is 10 % slower."""
