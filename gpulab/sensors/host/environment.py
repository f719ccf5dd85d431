"""Container, processor and PyTorch build of this process, read from files without importing or starting anything."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """An installed PyTorch and its build; the flags are None if its files do not tell."""

    version: str
    cuda: bool | None = None
    rocm: bool | None = None


def find_torch_build() -> TorchBuild | None:
    """The installed PyTorch, or None. It is read from its files, because importing it takes seconds."""
    try:
        package = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    source = _text(Path(str(package.locate_file("torch/version.py"))))
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", source, re.M)
    return TorchBuild(
        version=version[1] if version else package.version,
        cuda=_is_set("cuda", source),
        rocm=_is_set("hip", source),
    )


def detect_container(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Container, hosted notebook or WSL around this process; None without a sign of one."""
    groups = _text(root / "proc/self/cgroup")
    started_by = _text(root / "run/systemd/container").strip()  # written by systemd
    signs = {
        "Google Colab": "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ,
        "Kaggle": "KAGGLE_KERNEL_RUN_TYPE" in environ,
        "kubernetes": "KUBERNETES_SERVICE_HOST" in environ or "kubepods" in groups,
        "docker": (root / ".dockerenv").exists() or "/docker" in groups,
        "podman": (root / "run/.containerenv").exists() or "libpod" in groups,
        "lxc": "/lxc" in groups or started_by == "lxc",
        "WSL": "microsoft" in _text(root / "proc/sys/kernel/osrelease").lower(),
    }
    names = [name for name, sign in signs.items() if sign]
    return names[0] if names else started_by or None


def cpu_name(root: Path = Path("/")) -> str | None:
    """Model name of the processor."""
    match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.M)
    return match[1].strip() if match else platform.processor() or platform.machine() or None


def _is_set(name: str, source: str) -> bool | None:
    """Whether version.py assigns a string, as in `cuda: Optional[str] = '12.8'`; None without such a line."""
    match = re.search(rf"^{name}\b[^=\n]*=\s*(.+)$", source, re.M)
    return match[1].strip() != "None" if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
