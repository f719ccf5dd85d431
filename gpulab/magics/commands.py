"""The magics: each parses its line, calls a function that works without IPython, and returns its view.

What a magic calls is imported when it is called, so that `%load_ext gpulab` stays quick.
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
    output_can_be_silenced,
)
from traitlets import Bool, Enum, Integer

from gpulab.errors import CaptureError
from gpulab.magics.arguments import (
    COMPARE,
    INFO,
    LEVELS,
    MONITOR,
    PROFILE,
    REPORT,
    TIMELINE,
    WHATIF,
    WHY,
    Request,
    accepts,
    parsed,
    request,
    split_statement,
)
from gpulab.magics.nested_cell import execute, nested

if TYPE_CHECKING:
    from gpulab.magics.recording import Recording


@magics_class
class GpuProfileMagics(Magics):
    """Settings of %%gpuprofile; an option on its line goes before them."""

    level = Enum(LEVELS, "trace", help="How much is recorded: sensors, trace or deep.").tag(config=True)
    steps = Integer(None, allow_none=True, help="How many steps are recorded; None: as many as a verdict needs.").tag(
        config=True
    )
    live = Bool(True, help="Whether the live panel is shown while a cell runs.").tag(config=True)

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self.cell_now: str | None = None  # the cell that runs, as the user wrote it
        self._recording: Recording | None = None

    @accepts(*PROFILE)
    @no_var_expand
    @needs_local_scope
    @output_can_be_silenced
    @line_cell_magic
    def gpuprofile(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Record a cell, show it live, and report why the GPU idles, with the fix and what it gains.

        %%gpuprofile [options] [NAME]     on the first line of a cell
        %gpuprofile [options] statement   for one statement

        The cell runs as it would without this line. Its recording is then gpulab.runs["NAME"].
        """
        __tracebackhide__ = True
        options, code = (line, cell) if cell is not None else split_statement(line)
        asked = self.request(options)
        if asked.help:
            return self._help(self.gpuprofile)
        if not code.strip():
            raise UsageError("there is no code to profile: write it under %%gpuprofile, or after %gpuprofile")
        recorded = self._recording is None
        if recorded:
            self.begin(asked)
        else:
            self._say("gpulab: this runs inside a cell that is being profiled already, and is part of its report")
        if cell is None:
            return self._statement(code, local_ns, recorded)
        return self._cell(cell, recorded)

    @accepts(*REPORT)
    @line_magic
    def gpureport(self, line: str) -> Any:
        """Show the report of a run again."""
        asked = parsed(self.gpureport, line)
        if asked.help:
            return self._help(self.gpureport)
        from gpulab.capture.run_registry import runs
        from gpulab.magics.recording import reported

        return reported(runs[asked.name] if asked.name else runs.last)

    @accepts(*TIMELINE)
    @line_magic
    def gputimeline(self, line: str) -> Any:
        """What ran when, to zoom into; with a second run, or the step as predicted, on the same scale below it.

        %gputimeline NAME                the run
        %gputimeline NAME OTHER          two runs
        %gputimeline NAME workers=6      the run, and what is predicted of it with a change
        """
        asked = parsed(self.gputimeline, line)
        if asked.help:
            return self._help(self.gputimeline)
        from gpulab.capture.run_registry import runs
        from gpulab.replay.parsing import is_change
        from gpulab.views.timeline.view import timeline
        from gpulab.views.whatif.whatif import WhatIf, whatif

        words = [word for word in (asked.name, *asked.beside) if word is not None]
        named = bool(words) and (words[0] in runs or not is_change(words[0]))
        run, rest = (runs[words[0]], words[1:]) if named else (runs.last, words)
        if len(rest) == 1 and (rest[0] in runs or not is_change(rest[0])):
            return timeline(run, runs[rest[0]])
        predicted = whatif(run, " ".join(rest)) if rest else None
        return timeline(run, predicted if isinstance(predicted, WhatIf) else None)

    @accepts(*COMPARE)
    @line_magic
    def gpucompare(self, line: str) -> Any:
        """Compare runs: step times, ledgers, kernels, what was resolved, and whether it is more than noise.

        %gpucompare BEFORE AFTER              what changed, predicted beside measured
        %gpucompare BEFORE AFTER workers=2    the same, where this was changed and not what the first finding proposes
        %gpucompare A B C [...]               what each change of several gave
        """
        asked = parsed(self.gpucompare, line)
        if asked.help:
            return self._help(self.gpucompare)
        from gpulab import questions
        from gpulab.capture.run_registry import runs
        from gpulab.replay.parsing import is_change
        from gpulab.views.compare.comparison import comparison

        if asked.before is None or asked.after is None:
            raise UsageError(
                f"two runs are needed: %gpucompare BEFORE AFTER. Recorded: {', '.join(runs) or 'none yet'}"
            )
        changes = [word for word in asked.more if word not in runs and is_change(word)]
        before, after, *more = (runs[name] for name in (asked.before, asked.after, *asked.more) if name not in changes)
        if changes and more:
            raise UsageError(f"{' '.join(changes)} is predicted between two runs; here are {2 + len(more)}")
        return comparison(
            questions.compare(before, after, rewrites=" ".join(changes))
            if changes
            else questions.compare(before, after, *more)
        )

    @accepts(*WHATIF)
    @line_magic
    def gpuwhatif(self, line: str) -> Any:
        """Predict what a step would take with something changed: a range, a bound, and why.

        %gpuwhatif NAME workers=6 amp=bf16    changes made together
        %gpuwhatif NAME                       every change this run can tell of, the best first
        %gpuwhy workers                       how a change is modelled, and what that cannot know
        """
        asked = parsed(self.gpuwhatif, line)
        if asked.help:
            return self._help(self.gpuwhatif)
        from gpulab.capture.run_registry import runs
        from gpulab.replay.parsing import is_change
        from gpulab.views.whatif.whatif import whatif

        named = asked.name is not None and (asked.name in runs or not is_change(asked.name))
        changes = asked.changes if named or asked.name is None else [asked.name, *asked.changes]
        return whatif(runs[asked.name] if named else runs.last, " ".join(changes))

    @accepts(*MONITOR)
    @line_magic
    def gpumonitor(self, line: str) -> Any:
        """Watch GPU, CPU, memory and DataLoader workers in the background, across cells.

        %gpumonitor [options] [NAME]     start, with the live panel here
        %gpumonitor --stop               end it, and report; its run is then gpulab.runs["NAME"]

        It gives way while a cell is profiled.
        """
        asked = parsed(self.gpumonitor, line)
        if asked.help:
            return self._help(self.gpumonitor)
        from gpulab.magics import monitor_output

        if asked.stop:
            report = monitor_output.stop()
            return report if report is not None else self._say("gpulab: no monitor runs; %gpumonitor starts one")
        try:
            said = monitor_output.start(self._shell, asked.name, asked.every, asked.threshold)
        except CaptureError as problem:
            raise UsageError(str(problem)) from None
        return self._say(said) if said else None

    @accepts(*INFO)
    @line_magic
    def gpuinfo(self, line: str) -> Any:
        """What this machine is, and what gpulab can and cannot measure on it."""
        if parsed(self.gpuinfo, line).help:
            return self._help(self.gpuinfo)
        from gpulab.sensors.machine import machine
        from gpulab.views.info import info

        return info(machine())

    @accepts(*WHY)
    @line_magic
    def gpuwhy(self, line: str) -> Any:
        """How a finding is proved, what it is confused with, what to do about it; or how a change is modelled."""
        asked = parsed(self.gpuwhy, line)
        if asked.help:
            return self._help(self.gpuwhy)
        from gpulab.views.rule_page import page

        return page(asked.rule)

    def request(self, line: str) -> Request:
        """What a line of %%gpuprofile asks for, with the settings where it leaves the choice."""
        asked = request(self.gpuprofile, line)
        return replace(
            asked, level=asked.level or self.level, steps=asked.steps or self.steps, live=asked.live and self.live
        )

    def begin(self, asked: Request) -> None:
        """Record from here on."""
        from gpulab.magics.recording import Recording

        self._recording = Recording(self._shell, asked)
        self._recording.start()

    def end(self, error: BaseException | None) -> None:
        """Stop recording, if anything is recorded, and report."""
        if self._recording is not None:
            self._recording.finish(error)
            self._recording = None

    def abandon(self) -> None:
        """Stop recording, if anything is recorded, without a report."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.abandon()

    def _cell(self, cell: str, recorded: bool) -> None:
        """A cell under another magic, or in another cell: run it here, with one traceback in the end."""
        __tracebackhide__ = True
        error = nested(self._shell, cell, self.cell_now)
        if recorded:
            self.end(error)
        if error is not None:
            raise error

    def _statement(self, code: str, local_ns: dict[str, Any] | None, recorded: bool) -> Any:
        __tracebackhide__ = True
        error: BaseException | None = None
        try:
            return execute(self._shell, code, local_ns)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if recorded:
                self.end(error)

    def _help(self, magic: Any) -> None:
        self._say(magic.__doc__.removeprefix("::\n\n"))

    def _say(self, text: str) -> None:
        self._shell.display_pub.publish(data={"text/plain": text.rstrip()}, metadata={})
