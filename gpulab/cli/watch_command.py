"""`gpulab watch`: record until a signal arrives, with a line of status, and deliver alerts."""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from gpulab.cli.output import Output
from gpulab.errors import RunError
from gpulab.watch.alerts import Alert, QuietHours, parse_alert
from gpulab.watch.alerts.delivery import LOGGER, Delivery, Receiver, log_receiver
from gpulab.watch.alerts.watch_alerts import WatchAlerts
from gpulab.watch.alerts.webhook import Webhook
from gpulab.watch.clock import Clock
from gpulab.watch.database import default_path
from gpulab.watch.observation import Observation
from gpulab.watch.process_names import ProcessName
from gpulab.watch.schema import HOST_KIND
from gpulab.watch.watcher import Watcher
from gpulab.watch.writer import MAX_BYTES
from gpulab.wording import count, percent, quantity, size

_STATUS_S = 60.0  # between two lines on a file; a terminal gets one that is overwritten
_DURATION_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def watch_until_stopped(options: Namespace) -> Output:
    """Watch until SIGINT or SIGTERM, or for the given time. Returns what was recorded."""
    if options.unit:
        return Output(systemd_unit(options))
    path = options.database or default_path()
    alerts = tuple(parse_alert(text) for text in options.alert)
    delivery = _delivery(options)
    clock = Clock()
    watcher = Watcher(
        path, clock=clock, every_s=options.every, max_bytes=options.max_size or MAX_BYTES,
    )  # fmt: skip
    status = StatusLine(watcher, path)
    watcher.listen(WatchAlerts(alerts, delivery, watcher.writer.event, period_s=float(options.every)))
    watcher.listen(status)
    if options.prometheus is not None:
        from gpulab.integrations.prometheus import serve

        address, port = options.prometheus
        watcher.listen(serve(address, port, watcher.observer.host_name))
    sys.stderr.write(_introduction(path, alerts, options))
    with _stopped_by_signals(clock), _stopped_after(clock, options.duration):
        watcher.run()
    delivery.close()
    status.end()
    return Output(f"{count(watcher.readings, 'reading')} recorded in {path}; look back: gpulab history 24h")


def systemd_unit(options: Namespace) -> str:
    """Return a systemd unit that runs this command."""
    arguments = ["watch", *(f"--every={options.every}" for _ in (1,) if options.every != 1)]
    arguments += [f"--database={options.database.resolve()}"] if options.database else []
    arguments += [f"--alert={text}" for text in options.alert]
    arguments += [f"--quiet-hours={options.quiet_hours}"] if options.quiet_hours else []
    arguments += (
        [f"--prometheus={options.prometheus[0]}:{options.prometheus[1]}"] if options.prometheus is not None else []
    )
    secret = (
        "Environment=GPULAB_WEBHOOK=...  # the URL; unlike an argument, ps does not show it\n"
        if options.webhook
        else ""
    )
    command = shlex.join([sys.executable, "-m", "gpulab", *arguments]).replace("%", "%%")
    return f"""# ~/.config/systemd/user/gpulab-watch.service; then: systemctl --user enable --now gpulab-watch
# (for all users: /etc/systemd/system/gpulab-watch.service, and without --user)
[Unit]
Description=Record GPUs and their processes (gpulab watch)

[Service]
ExecStart={command}
{secret}Restart=always
RestartSec=10
Nice=10

[Install]
WantedBy=default.target"""


class StatusLine:
    """A listener that shows the last readings on stderr: one line that is overwritten, or one a minute in a file."""

    def __init__(self, watcher: Watcher, path: Path) -> None:
        self._watcher, self._path = watcher, path
        self._terminal = sys.stderr.isatty()
        self._next_s = 0.0
        self._width = 0

    def __call__(self, observation: Observation, names: Mapping[int, ProcessName]) -> None:
        """Show one observation."""
        now_s = time.monotonic()
        if not self._terminal and now_s < self._next_s:
            return
        self._next_s = now_s + _STATUS_S
        text = status_text(observation, self._watcher.failure)
        if not self._terminal:
            sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            sys.stderr.flush()
            return
        sys.stderr.write(f"\r{text:{self._width}}")
        sys.stderr.flush()
        self._width = len(text)

    def end(self) -> None:
        """End the line."""
        if self._terminal:
            sys.stderr.write("\n")


def status_text(observation: Observation, failure: str = "") -> str:
    """Return the readings in one line."""
    parts = []
    gpus = [reading for reading in observation.readings if reading.device.kind != HOST_KIND]
    for index, reading in enumerate(gpus):
        if reading.why:
            parts.append(f"GPU {index}: {reading.why}")
            continue
        values = reading.values
        figures = [percent(_measured(values, "util_frac")), size(_measured(values, "memory_used_bytes")),
                   quantity(_measured(values, "power_w"), "W")]  # fmt: skip
        processes = "" if reading.processes is None else f", {count(len(reading.processes), 'process', 'processes')}"
        parts.append(f"GPU {index}: {', '.join(figures)}{processes}")
    if not gpus:
        host = next(reading for reading in observation.readings if reading.device.kind == HOST_KIND)
        parts.append(f"no GPU; CPU {percent(_measured(host.values, 'cpu_frac'))}")
    if failure:
        parts.append(f"NOT SAVED: {failure}")
    return "   ".join(parts)


def _measured(values: Mapping[str, float], column: str) -> float | None:
    value = values.get(column)
    return None if value is None or value != value else value  # NaN


def _delivery(options: Namespace) -> Delivery:
    import os

    urls = [*options.webhook, *filter(None, [os.environ.get("GPULAB_WEBHOOK", "").strip()])]
    receivers: list[Receiver] = [log_receiver, *(Webhook(url) for url in urls)]
    if not LOGGER.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("\n%(message)s"))
        LOGGER.addHandler(handler)
    return Delivery(receivers, quiet=QuietHours.parse(options.quiet_hours) if options.quiet_hours else None)


def _introduction(path: Path, alerts: tuple[Alert, ...], options: Namespace) -> str:
    lines = [f"gpulab: recording every {count(options.every, 'second')} in {path}; stop with Ctrl-C"]
    lines += [f"gpulab: alert: {alert.text}" for alert in alerts]
    return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def _stopped_by_signals(clock: Clock) -> Iterator[None]:
    """Stop the clock at SIGINT, SIGTERM or SIGHUP; restore the handlers afterwards."""

    def stop(number: int, frame: FrameType | None) -> None:
        clock.stop()

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {name: signal.signal(getattr(signal, name), stop) for name in names}
    try:
        yield
    finally:
        for name, handler in handlers.items():
            signal.signal(getattr(signal, name), handler)


@contextlib.contextmanager
def _stopped_after(clock: Clock, text: str | None) -> Iterator[None]:
    """Stop the clock after a time."""
    if text is None:
        yield
        return
    import threading

    timer = threading.Timer(_seconds(text), clock.stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _seconds(text: str) -> float:
    amount = text.strip().rstrip("smindh")
    unit = text.strip()[len(amount) :] or "s"
    try:
        seconds = float(amount) * _DURATION_UNITS[unit]
    except (ValueError, KeyError):
        seconds = 0.0
    if seconds <= 0:
        raise RunError(
            f"The time {text!r} cannot be read.", why="it is no number with s, m, h or d", fix="write 10m or 8h"
        )
    return seconds
