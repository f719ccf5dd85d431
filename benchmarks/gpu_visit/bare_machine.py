"""Commands for a bare machine with a GPU and without network: PyTorch is installed there, gpulab's other needs are not.

Missing packages travel as wheels in the folder `wheels`, which git ignores. `gpulab` is among them for its version
alone: every stage imports the clone.
"""

from __future__ import annotations

PYTHON, PLATFORMS = "3.12", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PIP = ".venv/bin/python -m pip"
WHEELS, SITE, RESULTS = "wheels", "/tmp/gpu_visit_site", "build/gpu_visit"
# What gpulab imports and images with PyTorch often lack, with their needs.
PACKAGES = (
    *("anywidget", "isal", "msgspec", "platformdirs", "psygnal", "ipywidgets", "comm", "jupyterlab-widgets"),
    *("widgetsnbextension", "ipython", "traitlets", "decorator", "jedi", "parso", "matplotlib-inline", "pexpect"),
    *("ptyprocess", "prompt-toolkit", "wcwidth", "stack-data", "asttokens", "executing", "pure-eval"),
    *("ipython-pygments-lexers", "nvidia-ml-py"),
)


def prepare_command() -> str:
    """Fill the folder of wheels; for the Python and the C library of the machine with a GPU, not those here."""
    platforms = " ".join(f"--platform {platform}" for platform in PLATFORMS)
    options = f"-q --no-deps --only-binary=:all: --python-version {PYTHON} {platforms}"
    download = f"{PIP} download {options} -d {WHEELS} {' '.join(PACKAGES)}"
    build = f"{PIP} wheel -q --no-deps --no-build-isolation -w {WHEELS} ."
    return f"rm -rf {WHEELS} && {download} && {build}"


def device_command(minutes: float = 9) -> str:
    """Install the wheels beside the machine's packages, run the stages, and pack the results into one file in $OUT."""
    options = "-q --no-index --no-deps --no-compile --no-cache-dir --upgrade"
    install = f"python3 -m pip install {options} --target {SITE} {WHEELS}/*.whl"
    run = f'python3 tools/gpu_visit.py --minutes {minutes:g} --out {RESULTS} --archive "$OUT/gpu_visit.zip"'
    copy = f'code=$?; cp {RESULTS}/summary.md "$OUT"; exit $code'
    return f"{install} && export PYTHONPATH={SITE} PYTHONUNBUFFERED=1 && {run}; {copy}"
