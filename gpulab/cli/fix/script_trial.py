"""`gpulab fix`: measure the fixes of a script, by running it for some seconds with and without each."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpulab.capture.job_rank import launched_rank
from gpulab.cli.fix.local_files import local_files
from gpulab.cli.fix.script_runner import ScriptRunner
from gpulab.cli.program import Program
from gpulab.errors import CaptureError
from gpulab.files import load
from gpulab.questions import diagnose
from gpulab.rules import Diagnosis, Finding
from gpulab.rules.engine.pasted_names import fixes_to_try
from gpulab.run import Run
from gpulab.trial.all_fixes import REPEATS, AllFixes, measured_fixes
from gpulab.trial.fix_trial import require_times_of_this_machine
from gpulab.trial.program_code import ProgramCode
from gpulab.views.report.headline import headline
from gpulab.wording import count, did_you_mean, duration

SECONDS = 5.0
_RECORDED_S = 20.0  # if there is no recording yet


@dataclass(frozen=True, kw_only=True)
class FixOptions:
    """What to measure."""

    program: Program
    recording: Path | None = None  # whose findings' fixes to try; None: the script is recorded first
    rule: str | None = None  # only the fix of this finding
    seconds: float = SECONDS  # of each run, after its first steps
    protected: bool = True  # changes of files are discarded, and programs and connections refused


def try_fixes_of_script(options: FixOptions, announce: Callable[[str], None]) -> AllFixes:
    """Run a script with the fix of each finding in turn, and announce each stage.

    Raises GpulabError if the script cannot be run in this way, or if no finding has code.
    """
    if launched_rank() is not None:
        raise CaptureError(
            "Fixes cannot be measured in several ranks.",
            why="each run starts the script in a process of its own",
            fix="start it without the launcher: gpulab fix SCRIPT",
        )
    program = options.program
    path, source = program.source()
    try:
        tree = ast.parse(source, path)
    except SyntaxError as problem:
        raise CaptureError(f"{program.name!r} does not compile.", why=str(problem), fix="correct this line") from None
    folder = Path.cwd() if program.is_module else Path(path).parent
    code = ProgramCode(tree, "script", local_files(Path(path), tree, folder))
    diagnosis = diagnose(_recording(options, code, announce))
    findings = _findings(diagnosis, options.rule)
    least_s = REPEATS * options.seconds * (1 + len(findings))
    announce(
        f"gpulab: {headline(diagnosis).claim}\n"
        f"gpulab: runs {program.name} unchanged and with {count(len(findings), 'fix', 'fixes')}, {REPEATS} times each "
        f"({', '.join(finding.label for finding in findings)}): at least {duration(1e9 * least_s)}, and "
        f"{count(REPEATS * (1 + len(findings)), 'start')} of the script"
    )
    runner = ScriptRunner(program, options.seconds, protected=options.protected)
    return measured_fixes(diagnosis, findings, code, {}, lambda _: runner, seconds=options.seconds, repeats=REPEATS)


def _recording(options: FixOptions, code: ProgramCode, announce: Callable[[str], None]) -> Run:
    """Return the recording whose fixes are tried; without one, record the script for some seconds."""
    if options.recording is None:
        announce(
            f"gpulab: records {options.program.name} for about {duration(1e9 * _RECORDED_S)} after its first steps"
        )
        runner = ScriptRunner(options.program, _RECORDED_S, protected=options.protected)
        return runner.run(code, options.program.title, level="trace")[0]
    loaded = load(options.recording, progress=False)
    if not isinstance(loaded, Run):
        raise CaptureError(
            "Fixes cannot be measured in several ranks.",
            why=f"{options.recording} has the recordings of {count(len(loaded.runs), 'rank')}",
            fix="leave out --recording: the script is then recorded first, as one process",
        )
    require_times_of_this_machine(loaded)
    return loaded


def _findings(diagnosis: Diagnosis, rule: str | None) -> tuple[Finding, ...]:
    """Return the findings whose fixes can be tried. Raises CaptureError if there is none."""
    candidates = [finding for finding in diagnosis.findings if rule in (None, finding.rule)]
    findings = tuple(fix for finding in candidates for fix in fixes_to_try(finding))
    if findings:
        return findings
    names = [finding.rule for finding in diagnosis.findings]
    if rule is not None and not candidates:
        raise CaptureError(
            f"The script has no finding {rule!r}.",
            why=f"its findings are {', '.join(names) or 'none'}",
            fix=did_you_mean(rule, names) or "leave out --rule",
        )
    raise CaptureError(
        "No fix can be tried.",
        why=f"the findings ({', '.join(names)}) are advice, not code" if names else "there is no finding",
        fix="read the report: gpulab run SCRIPT",
    )
