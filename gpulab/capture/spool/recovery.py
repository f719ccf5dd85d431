"""Build runs from what the recordings of killed processes left on disk."""

from __future__ import annotations

import contextlib
import datetime
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpulab.capture.job_rank import rank_from_facts
from gpulab.capture.merge_traces import merge_traces
from gpulab.capture.run_registry import Runs, runs
from gpulab.capture.spool.content import (
    STILL_OPEN,
    TABLES,
    TIME_COLUMNS,
    RecordingState,
    SpoolHeader,
    decode_header,
    decode_rows,
    decode_state,
)
from gpulab.capture.spool.folder import DAMAGED_SUFFIX, WINDOW_SUFFIX, SpoolFiles, find_leftovers, window_index
from gpulab.capture.spool.framing import MAGIC, RecordKind, split_records
from gpulab.errors import GpulabError, TraceError
from gpulab.rows import Rows, concat
from gpulab.run import KILLED, TABLE_FIELDS, TRACED_WORK, Gap, Recording, Run, Source
from gpulab.store.consistency import find_inconsistency
from gpulab.tables import PHASES
from gpulab.wording import clean, count, duration, size

_LITTLE_MEMORY_FRAC = 0.1  # of all memory: with less available, the out-of-memory killer is likely
_MAX_NAMED, _NAME_WIDTH = 2, 40  # recordings in the line of `recoverable`, and characters of their names
_HEADER_BYTES = 64 * 1024  # more than any header


@dataclass
class _SpoolData:
    """What the files of one recording contain."""

    header: SpoolHeader | None = None
    state: RecordingState = field(default_factory=RecordingState)
    parts: dict[str, list[Rows]] = field(default_factory=lambda: defaultdict(list))
    first_segment: int = 0


def recover() -> tuple[Run, ...]:
    """Return runs of recordings whose process was killed, and add them to `gpulab.runs`; () if there are none.

    While gpulab records, it appends step marks and sensor readings to a file about once a second. A process that ends
    without stopping the recording, as after SIGKILL or by the out-of-memory killer, leaves this file. Each run has
    the outcome "killed" and reaches to the last second before; it contains the operators and kernels of the traced
    parts that had ended. Its files are deleted then: `gpulab.save` keeps the run.
    """
    recovered = []
    for run in recover_from(None):
        run = replace(run, name=_free_name(run.name, runs))
        runs.add(run)
        recovered.append(run)
    return tuple(recovered)


def recover_from(folder: Path | None) -> Iterator[Run]:
    """Yield the runs that killed processes left in a folder (None: the user's cache), and delete their files then."""
    for files in find_leftovers(folder):
        try:
            run = read_spool(files)
        except (ValueError, OverflowError, GpulabError) as error:
            _set_aside(files, str(error))
            continue
        except OSError:
            continue  # another process recovers it, or the disk fails: the next call tries again
        if run is not None:
            yield run
        with contextlib.suppress(OSError):
            files.remove()


def recoverable() -> str:
    """A line that says what `recover` would find; "" if nothing. Lists one folder, and reads the start of few files."""
    leftovers = find_leftovers()
    if not leftovers:
        return ""
    number = len(leftovers)
    subject = f"{count(number, 'recording')} of {'a killed process' if number == 1 else 'killed processes'}"
    headers = [header for files in leftovers[: -_MAX_NAMED - 1 : -1] if (header := _read_header(files)) is not None]
    names = ", ".join(f'"{clean(header.name, _NAME_WIDTH)}" of {clean(header.date, 20)}' for header in headers)
    latest = f" ({'the latest: ' if number > len(headers) else ''}{names})" if names else ""
    return f"gpulab: {subject}{latest} can be recovered, if you want them: gpulab.recover()"


def _read_header(files: SpoolFiles) -> SpoolHeader | None:
    """The header of a recording; None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError), files.paths[0].open("rb") as file:
        for kind, content in split_records(file.read(_HEADER_BYTES)):
            return decode_header(content) if kind is RecordKind.HEADER else None
    return None


def read_spool(files: SpoolFiles) -> Run | None:
    """The run in the files; None if the process was killed before the first reading.

    Raises OSError if they cannot be read, and ValueError, OverflowError or GpulabError if they are inconsistent.
    """
    data = _read_segments(files.paths)
    if data.header is None or not any(data.parts.values()):
        return None
    run = _build_run(data, data.header, dict(_read_windows(files.windows, data.header.name)))
    if (problem := find_inconsistency(run)) is not None:
        raise ValueError(problem)
    return run


def _read_segments(paths: Iterable[Path]) -> _SpoolData:
    data = _SpoolData()
    for path in paths:
        text = path.read_bytes()
        if not text.startswith(MAGIC[: len(text)]):
            raise ValueError("it is of another format, or was written by a newer gpulab")
        for kind, content in split_records(text):
            if kind is RecordKind.HEADER:
                header = decode_header(content)
                if data.header is None:
                    data.header, data.first_segment = header, header.segment
            elif kind is RecordKind.STATE:
                data.state = decode_state(content)
            elif (rows := decode_rows(content)) is not None:
                data.parts[rows.table.name].append(rows)
    return data


def _read_windows(paths: Iterable[Path], name: str) -> Iterator[tuple[int, Run]]:
    """Yield number and events of each window of the profiler that is complete."""
    from gpulab import trace  # loading the extension, which imports this module, must stay quick

    for path in paths:
        if path.name.endswith(WINDOW_SUFFIX):
            with contextlib.suppress(TraceError, ValueError):  # the report says that its events are lost
                yield window_index(path), trace.read(path, name=name)


def _build_run(data: _SpoolData, header: SpoolHeader, traces: Mapping[int, Run]) -> Run:
    began_ns, state = header.began_ns, data.state
    # The state on disk may be older than the latest trace: its span is then unknown, and it is not used.
    traced = {index: span for index, span in enumerate(state.windows_ns) if index in traces and span[1] != STILL_OPEN}
    tables = {name: _shifted(concat(TABLES[name], parts), -began_ns) for name, parts in data.parts.items()}
    fields = {name: tables[table.name] for name, table in TABLE_FIELDS.items() if table.name in tables}
    last_ns = max(_last_time(rows) for rows in tables.values())
    if state.open_phases:
        ended = fields.get("phase_rows", PHASES.empty())
        fields["phase_rows"] = concat(PHASES, [ended, _open_phases(state, began_ns, last_ns)])
    # The profiler was on in the other windows, and their events are lost: no step there shows the real step time.
    lost = [span for index, span in enumerate(state.windows_ns) if index not in traced]
    spans = ((start - began_ns, min(end - began_ns, last_ns)) for start, end in (*state.pauses_ns, *lost))
    pauses = sorted((start, end) for start, end in spans if start < end)
    run = Run(
        name=header.name,
        source=Source(how="measured", device=header.machine.device, date=header.date),
        machine=header.machine,
        span_ns=max(0, last_ns),
        began_ns=began_ns,
        outcome=KILLED,
        rank=rank_from_facts(state.facts),
        loaders=state.loaders,
        models=state.models,
        optimizers=state.optimizers,
        frozen_models=state.frozen_models,
        repeated_inputs=state.repeated_inputs,
        repeated_in_evaluations=state.repeated_in_evaluations,
        evaluated_modules=state.evaluated_modules,
        growing_inputs=state.growing_inputs,
        discarded_gradients=state.discarded_gradients,
        facts=state.facts,
        **fields,  # type: ignore[arg-type]
    )
    gaps = (*_gaps(run, header, data.first_segment, bool(lost) or not traced), *state.gaps)
    recording = Recording(
        level=header.level,
        windows_ns=tuple((start - began_ns, end - began_ns) for start, end in traced.values()),
        pauses_ns=tuple(pauses),
        left_out=gaps,
    )
    return replace(merge_traces(run, [traces[index] for index in traced]), recording=recording)


def _gaps(run: Run, header: SpoolHeader, first_segment: int, events_are_lost: bool) -> list[Gap]:
    ended = datetime.datetime.fromtimestamp((header.began_ns + run.span_ns) / 1e9).astimezone()
    gaps = [
        Gap(
            what="the end of the run",
            why=f"its process ended without stopping the recording: {_likely_cause(run)}; "
            f"the last data is from {ended:%Y-%m-%d %H:%M:%S}, {duration(run.span_ns)} after the start",
            fix="look for 'Killed process' in dmesg, or at the log of the cluster's scheduler",
        )
    ]
    if header.level != "sensors" and events_are_lost:
        gaps.append(
            Gap(
                what=f"{TRACED_WORK} in part of the run",
                why="the profiler keeps its latest events in the memory of the process, which was killed",
                fix="profile a shorter part of the loop, which ends before the process is killed",
            )
        )
    if first_segment:
        gaps.append(
            Gap(
                what="the first part of the run",
                why="the recording was long, and only the latest part is kept on disk",
                fix="nothing to do: the part before the end is complete",
            )
        )
    return gaps


def _likely_cause(run: Run) -> str:
    """Why the process ended, as far as the last reading of memory shows."""
    available = run.host_rows["memory_available_bytes"]
    total = run.machine.memory_limit_bytes or run.machine.memory_bytes
    if len(available) and total and available[-1] < _LITTLE_MEMORY_FRAC * total:
        return f"{size(available[-1])} of {size(total)} of memory was available, so the out-of-memory killer is likely"
    return "it was killed (SIGKILL, or the out-of-memory killer), or it crashed"


def _shifted(rows: Rows, by_ns: int) -> Rows:
    return rows.shifted(by_ns, *(name for name in TIME_COLUMNS if name in rows.columns))


def _open_phases(state: RecordingState, began_ns: int, last_ns: int) -> Rows:
    """The phases in which the process was killed."""
    starts = ((name, start_ns - began_ns) for name, start_ns in state.open_phases)
    return PHASES.of([(name, start_ns, max(start_ns, last_ns)) for name, start_ns in starts])


def _last_time(rows: Rows) -> int:
    return max(int(rows[name].max(initial=0)) for name in TIME_COLUMNS if name in rows.columns)


def _free_name(name: str, registry: Runs) -> str:
    """The name, or one like it: a run of this session must not disappear."""
    candidate, number = name, 1
    while candidate in registry:
        candidate = f"{name}-recovered{number if number > 1 else ''}"
        number += 1
    return candidate


def _set_aside(files: SpoolFiles, why: str) -> None:
    """Rename damaged files, so that they are not announced again and can be examined."""
    with contextlib.suppress(OSError):
        for path in files.paths:
            path.replace(path.with_name(path.name + DAMAGED_SUFFIX))
    warnings.warn(
        f"gpulab: a recording cannot be recovered: {clean(why)}. Its files are kept: {files.paths[0]}{DAMAGED_SUFFIX}",
        stacklevel=3,
    )
