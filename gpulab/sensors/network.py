"""The speed of the network between the machines of a job, as Linux states it; nothing is sent to measure it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_ACTIVE = "4:"  # begins the state of an InfiniBand port that is up: "4: ACTIVE"
_BITS_PER_BYTE = 8
_DEFAULT_ROUTE = "00000000"
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def network_bytes_per_s(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None, *, by_rdma: bool = True
) -> float | None:
    """Return the speed of one network port of this machine, in one direction; None if Linux does not state it.

    It is that of the fastest active InfiniBand or RoCE port (`by_rdma`: NCCL prefers them, gloo cannot use them), else
    that of the interface that the environment names, else that of the default route. `root` holds `sys` and `proc`.
    """
    rates = tuple(_rdma_rates(root / "sys/class/infiniband")) if by_rdma else ()
    if rates:
        return max(rates)
    interface = _chosen_interface(root / "sys/class/net", os.environ if environ is None else environ)
    interface = interface or _default_interface(root / "proc/net/route")
    return None if interface is None else _interface_rate(root / "sys/class/net" / interface / "speed")


def _rdma_rates(devices: Path) -> Iterator[float]:
    """Yield the rate of each active port in bytes per second: "200 Gb/sec (4X HDR)"."""
    for port in sorted(devices.glob("*/ports/*")):
        number, _, unit = _text(port / "rate").partition(" ")
        if _text(port / "state").startswith(_ACTIVE) and unit.startswith("Gb/sec") and _is_decimal(number):
            yield float(number) * 1e9 / _BITS_PER_BYTE


def _chosen_interface(interfaces: Path, environ: Mapping[str, str]) -> str | None:
    """Return the first interface with the name, or the beginning of a name, that a variable asks for."""
    for variable in _INTERFACE_VARIABLES:
        start = environ.get(variable, "").split(",")[0].removeprefix("=").strip()
        if not start or start.startswith("^"):  # these are excluded
            continue
        names = sorted(path.name for path in interfaces.glob("*"))
        matches = [name for name in names if name == start] or [name for name in names if name.startswith(start)]
        if matches:
            return matches[0]
    return None


def _default_interface(routes: Path) -> str | None:
    rows = (line.split() for line in _text(routes).splitlines()[1:])
    return next((row[0] for row in rows if len(row) > 1 and row[1] == _DEFAULT_ROUTE), None)


def _interface_rate(speed_file: Path) -> float | None:
    """Return the rate that a driver states in Mbit/s; virtual interfaces state none or -1."""
    text = _text(speed_file)
    return float(text) * 1e6 / _BITS_PER_BYTE if text.isdecimal() and int(text) > 0 else None


def _is_decimal(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _text(path: Path) -> str:
    """Return the content of a small file; "" if it cannot be read, as for an interface that is down."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
