"""The magics. Each parses its line, calls a function that works without IPython, and returns its view.

Imports are inside the magics, so that `%load_ext gpulab` stays fast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from traitlets import Bool, Enum, Integer

from gpulab.errors import CaptureError
from gpulab.magics.arguments import (
    COMPARE,
    FIX,
    HISTORY,
    INFO,
    LEVELS,
    MONITOR,
    PROFILE,
    REPORT,
    TIMELINE,
    WHATIF,
    WHY,
    ProfileOptions,
    parse_line,
    parse_profile_line,
    split_statement,
    with_arguments,
)
from gpulab.magics.ipython_versions import output_can_be_silenced
from gpulab.magics.nested_cell import run_nested_cell, run_statement

if TYPE_CHECKING:
    from gpulab.magics.recording import CellRecording
    from gpulab.run import Run


@magics_class
class GpuProfileMagics(Magics):
    """Settings of %%gpuprofile; options on its line override them."""

    level = Enum(LEVELS, "trace", help="What to record: sensors, trace or deep.").tag(config=True)
    steps = Integer(None, allow_none=True, help="Number of steps to record; None: as many as a diagnosis needs.").tag(
        config=True
    )
    live = Bool(True, help="Show the live panel while a cell runs.").tag(config=True)

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self.running_cell: str | None = None  # source of the running cell, as the user wrote it
        self._recording: CellRecording | None = None
        self._cells: dict[str, str] = {}  # code of the profiled cells by the name of their run, for %gpufix

    @with_arguments(*PROFILE)
    @no_var_expand
    @needs_local_scope
    @output_can_be_silenced
    @line_cell_magic
    def gpuprofile(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Profile a cell: show it live, then report why the GPU is idle, the fix, and the predicted speed-up.

        %%gpuprofile [options] [NAME]     on the first line of a cell
        %gpuprofile [options] statement   for one statement

        The cell runs exactly as it would without this line. The recording is then gpulab.runs["NAME"].
        """
        __tracebackhide__ = True
        line_options, code = (line, cell) if cell is not None else split_statement(line)
        options = self.request(line_options)
        if options.help:
            return self._help(self.gpuprofile)
        if not code.strip():
            raise UsageError("no code to profile: write it below %%gpuprofile, or after %gpuprofile on the same line")
        recorded = self._recording is None
        if recorded:
            self.begin(options, code)
        else:
            self._print(
                "gpulab: this cell runs inside a cell that is being profiled, and is part of that cell's report"
            )
        if cell is None:
            return self._statement(code, local_ns, recorded)
        return self._cell(cell, recorded)

    @with_arguments(*REPORT)
    @line_magic
    def gpureport(self, line: str) -> Any:
        """Show the report of a run again.

        %gpureport                  the last run
        %gpureport NAME             a run of this session, or a file
        %gpureport NAME --all       with the checks that could not run
        """
        options = parse_line(self.gpureport, line)
        if options.help:
            return self._help(self.gpureport)
        from gpulab.magics.recording import diagnosis_report

        return diagnosis_report(_run(options.name), everything=options.all)

    @with_arguments(*TIMELINE)
    @line_magic
    def gputimeline(self, line: str) -> Any:
        """Show the timeline of a run, with zoom; below it, on the same scale, a second run or a predicted step.

        %gputimeline NAME                the run; if it started ranks, a lane for each of them
        %gputimeline NAME OTHER          two runs
        %gputimeline NAME workers=6      the run, and the predicted step with a change
        """
        options = parse_line(self.gputimeline, line)
        if options.help:
            return self._help(self.gputimeline)
        from gpulab.capture.run_registry import runs
        from gpulab.replay.parsing import is_change
        from gpulab.views.timeline.view import timeline
        from gpulab.views.whatif.whatif import WhatIf, whatif

        arguments = [word for word in (options.name, *options.others) if word is not None]
        has_name = bool(arguments) and not is_change(arguments[0], runs)
        run, rest = (_run(arguments[0]), arguments[1:]) if has_name else (runs.last, arguments)
        if len(rest) == 1 and not is_change(rest[0], runs):
            return timeline(run, _run(rest[0]))
        predicted = whatif(run, " ".join(rest)) if rest else None
        if isinstance(predicted, WhatIf):
            return timeline(run, predicted)
        return timeline(runs.with_ranks(run.name) if runs.holds(run) else run)

    @with_arguments(*COMPARE)
    @line_magic
    def gpucompare(self, line: str) -> Any:
        """Compare runs: step times, ledgers, kernels, resolved findings, and whether the difference exceeds the noise.

        %gpucompare BEFORE AFTER              differences, with predicted and measured speed-up
        %gpucompare BEFORE AFTER workers=2    the same, for a change that the settings of both runs do not show
        %gpucompare A B C [...]               the effect of each of several changes
        """
        options = parse_line(self.gpucompare, line)
        if options.help:
            return self._help(self.gpucompare)
        from gpulab import questions
        from gpulab.capture.run_registry import runs
        from gpulab.replay.parsing import is_change
        from gpulab.views.compare.comparison import comparison_view

        if options.before is None or options.after is None:
            raise UsageError(
                f"two runs are needed: %gpucompare BEFORE AFTER. Recorded: {', '.join(runs) or 'none yet'}"
            )
        if is_change(options.after, runs):
            raise UsageError(
                f"{options.after} is a change, and two runs are needed before it: %gpucompare BEFORE AFTER "
                f"{options.after}. To predict the change instead: %gpuwhatif {options.before} {options.after}"
            )
        changes = [word for word in options.more if is_change(word, runs)]
        before, after, *more = (
            _run(name) for name in (options.before, options.after, *options.more) if name not in changes
        )
        if changes and more:
            raise UsageError(f"{' '.join(changes)}: a change can be given for two runs only, not for {2 + len(more)}")
        return comparison_view(
            questions.compare(before, after, rewrites=" ".join(changes))
            if changes
            else questions.compare(before, after, *more)
        )

    @with_arguments(*WHATIF)
    @line_magic
    def gpuwhatif(self, line: str) -> Any:
        """Predict the step time after a change: a range, a bound, and the reason.

        %gpuwhatif NAME workers=6 amp=bf16    several changes together
        %gpuwhatif NAME                       every change that can be predicted for this run, best first
        %gpuwhy workers                       how a change is modelled, and the limits of the model
        """
        options = parse_line(self.gpuwhatif, line)
        if options.help:
            from gpulab.views.rule_page import change_lines

            return self._help(self.gpuwhatif, "\n".join(("changes:", *change_lines())))
        from gpulab.capture.run_registry import runs
        from gpulab.replay.parsing import is_change
        from gpulab.views.rule_page import change_list
        from gpulab.views.whatif.whatif import whatif

        if options.name is None and not runs:
            return change_list()
        has_name = options.name is not None and not is_change(options.name, runs)
        changes = options.changes if has_name or options.name is None else [options.name, *options.changes]
        run = _run(options.name) if has_name else runs.last
        return whatif(runs.with_ranks(run.name) if runs.holds(run) else run, " ".join(changes))

    @with_arguments(*FIX)
    @line_magic
    def gpufix(self, line: str) -> Any:
        """Measure a fix before you apply it: run the profiled cell for some seconds with and without it.

        %gpufix                  the first finding of the last run whose fix is code
        %gpufix NAME --rule RULE another run, another finding
        %gpufix NAME --all       the fixes of all findings, then all that help together; the fastest comes first

        Three runs of each alternate. They use copies of your variables, and write no files.
        """
        options = parse_line(self.gpufix, line)
        if options.help:
            return self._help(self.gpufix)
        from gpulab.magics.fix_trials import try_all_fixes_of, try_fix_of

        if options.all and options.rule:
            raise UsageError("--all tries the fixes of all findings, --rule that of one: leave one of them out")
        if options.all:
            return try_all_fixes_of(self._shell, self._cells, options.name, options.seconds, self._print)
        return try_fix_of(self._shell, self._cells, options.name, options.rule, options.seconds, self._print)

    @with_arguments(*MONITOR)
    @line_magic
    def gpumonitor(self, line: str) -> Any:
        """Watch GPU, CPU, memory and DataLoader workers in the background, across cells.

        %gpumonitor [options] [NAME]     start, with the live panel in this output
        %gpumonitor --stop               stop and report; the recording is then gpulab.runs["NAME"]

        The monitor pauses while a cell is profiled.
        """
        options = parse_line(self.gpumonitor, line)
        if options.help:
            return self._help(self.gpumonitor)
        from gpulab.magics import monitor_output

        if options.stop:
            report = monitor_output.stop()
            return (
                report if report is not None else self._print("gpulab: no monitor is running; %gpumonitor starts one")
            )
        try:
            message = monitor_output.start(
                self._shell,
                options.name,
                options.every,
                options.threshold,
                alerts=tuple(options.alert or ()),
                webhook=options.webhook,
                keep=options.keep,
            )
        except CaptureError as problem:
            raise UsageError(str(problem)) from None
        return self._print(message) if message else None

    @with_arguments(*HISTORY)
    @line_magic
    def gpuhistory(self, line: str) -> Any:
        """Look back on all GPUs of this machine: use by day and hour, cost, patterns, gaps and events.

        %gpuhistory              the last seven days
        %gpuhistory 24h          another time: hours, days, weeks, or one month

        `gpulab watch` records it, or %gpumonitor --keep.
        """
        options = parse_line(self.gpuhistory, line)
        if options.help:
            return self._help(self.gpuhistory)
        from pathlib import Path

        from gpulab.hardware.prices import parse_prices
        from gpulab.views.history.history_view import history

        prices = None if options.price is None else parse_prices(options.price)
        path = None if options.database is None else Path(options.database)
        return history(options.span, path=path, prices=prices)

    @with_arguments(*INFO)
    @line_magic
    def gpuinfo(self, line: str) -> Any:
        """Show this machine, and what gpulab can and cannot measure on it."""
        if parse_line(self.gpuinfo, line).help:
            return self._help(self.gpuinfo)
        from gpulab.sensors.machine import describe_machine
        from gpulab.views.info import info

        return info(describe_machine())

    @with_arguments(*WHY)
    @line_magic
    def gpuwhy(self, line: str) -> Any:
        """Explain a rule: its proof, similar causes, and the fix; or how a change is modelled."""
        options = parse_line(self.gpuwhy, line)
        if options.help:
            return self._help(self.gpuwhy)
        from gpulab.views.rule_page import page

        return page(options.rule)

    def request(self, line: str) -> ProfileOptions:
        """Options of a %%gpuprofile line, completed by the settings."""
        options = parse_profile_line(self.gpuprofile, line)
        return replace(
            options,
            level=options.level or self.level,
            steps=options.steps or self.steps,
            live=options.live and self.live,
        )

    def begin(self, options: ProfileOptions, code: str) -> None:
        """Start recording a cell with this code."""
        from gpulab.magics.recording import CellRecording

        self._recording = CellRecording(self._shell, options)
        self._recording.start()
        if self._recording.name is not None:
            self._cells[self._recording.name] = code

    @property
    def is_recording(self) -> bool:
        """Whether a cell is being recorded."""
        return self._recording is not None

    def end(self, error: BaseException | None) -> None:
        """Stop the recording, if there is one, and report."""
        if self._recording is not None:
            self._recording.finish(error)
            self._recording = None

    def abandon(self) -> None:
        """Stop the recording, if there is one, without a report."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.abandon()

    def _cell(self, cell: str, recorded: bool) -> None:
        """Run a cell that is under another magic or inside another cell; its error has one traceback only."""
        __tracebackhide__ = True
        error = run_nested_cell(self._shell, cell, self.running_cell)
        if recorded:
            self.end(error)
        if error is not None:
            raise error

    def _statement(self, code: str, local_ns: dict[str, Any] | None, recorded: bool) -> Any:
        __tracebackhide__ = True
        error: BaseException | None = None
        try:
            return run_statement(self._shell, code, local_ns)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if recorded:
                self.end(error)

    def _help(self, magic: Any, more: str = "") -> None:
        self._print("\n".join((magic.__doc__.removeprefix("::\n\n"), more)))

    def _print(self, text: str) -> None:
        self._shell.display_pub.publish(data={"text/plain": text.rstrip()}, metadata={})


def _run(name: str | None) -> Run:
    """The run of this name or in this file; without a name, the last one. Raises RunError if there is none."""
    from gpulab.capture.run_registry import runs
    from gpulab.questions.run_names import find_run

    return runs.last if name is None else find_run(name)
