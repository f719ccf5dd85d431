"""Self-test: whether the virtual GPU works with the installed PyTorch, tried in a subprocess.

run         runs the self-test in a subprocess, and caches its result
program     the training loop that the subprocess runs
progress    the output of the subprocess, parsed
"""
