"""What this process runs in: container, processor, PyTorch build; read from files, nothing is imported or started."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """An installed PyTorch and what it was built for; the flags are None where its files do not tell."""

    version: str
    cuda: bool | None = None
    rocm: bool | None = None


def torch_build() -> TorchBuild | None:
    """The installed PyTorch; None where there is none. Importing it would take seconds, so its files are read."""
    try:
        package = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    told = _text(Path(str(package.locate_file("torch/version.py"))))
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", told, re.M)
    return TorchBuild(
        version=version[1] if version else package.version,
        cuda=_is_set("cuda", told),
        rocm=_is_set("hip", told),
    )


def container(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """The container, hosted notebook or WSL this process runs in; None where nothing tells of one."""
    groups = _text(root / "proc/self/cgroup")
    started_by = _text(root / "run/systemd/container").strip()  # systemd writes down who started it
    signs = {
        "Google Colab": "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ,
        "Kaggle": "KAGGLE_KERNEL_RUN_TYPE" in environ,
        "kubernetes": "KUBERNETES_SERVICE_HOST" in environ or "kubepods" in groups,
        "docker": (root / ".dockerenv").exists() or "/docker" in groups,
        "podman": (root / "run/.containerenv").exists() or "libpod" in groups,
        "lxc": "/lxc" in groups or started_by == "lxc",
        "WSL": "microsoft" in _text(root / "proc/sys/kernel/osrelease").lower(),
    }
    found = [name for name, sign in signs.items() if sign]
    return found[0] if found else started_by or None


def cpu_name(root: Path = Path("/")) -> str | None:
    """The processor as it names itself."""
    named = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.M)
    return named[1].strip() if named else platform.processor() or platform.machine() or None


def _is_set(name: str, source: str) -> bool | None:
    """Whether version.py gives a name a text, as in `cuda: Optional[str] = '12.8'`; None where it is not there."""
    given = re.search(rf"^{name}\b[^=\n]*=\s*(.+)$", source, re.M)
    return given[1].strip() != "None" if given else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
