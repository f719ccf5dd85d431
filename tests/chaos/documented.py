"""Differences between a plain and a recorded run that gpulab documents, each with its reason.

A difference that no entry of this list accepts is a defect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpulab.capture.profile_block import ProfiledBlock
from gpulab.virtual.session import VirtualGpu
from tests.chaos.program import Observation, Program

MIB = 2**20


@dataclass(frozen=True)
class Difference:
    """One field that differs: its name, its value in the plain run and in the recorded run."""

    field: str
    plain: str
    recorded: str
    origin: str = ""

    group: str = ""  # replaces the two values in the kind of the difference

    @property
    def kind(self) -> str:
        """The difference without numbers: differences of one kind are one defect."""
        plain, recorded = (re.sub(r"\d+", "#", text)[:160] for text in (self.plain, self.recorded))
        return f"{self.field}: {self.group or f'{plain} -> {recorded}'}" + (f" [{self.origin}]" if self.origin else "")


Accepts = Callable[[Program, Difference, Observation], bool]


@dataclass(frozen=True)
class DocumentedDifference:
    """A difference that is allowed, and why."""

    name: str
    reason: str
    accepts: Accepts


def _loaders(name: str) -> int:
    return 2 if name.endswith("loader chain") else 1


DOCUMENTED = (
    DocumentedDifference(
        "one call",
        "gpulab may call a method of a user's object once per DataLoader, e.g. the length of a batch sampler",
        lambda program, difference, __: (
            (
                difference.field == "calls batch_sampler.__len__" and "recurses" in program.name
            )  # one call, which calls itself
            or (
                difference.field.startswith("calls ")
                and 1 <= int(difference.recorded or 0) - int(difference.plain or 0) <= _loaders(program.name)
            )
        ),
    ),
    DocumentedDifference(
        "atexit slot",
        "Python keeps the empty slot of an atexit callback that the monitor registered and unregistered",
        lambda program, difference, _: program.recorder == "monitor" and difference.field == "left behind: atexit",
    ),
    DocumentedDifference(
        "log of PyTorch",
        "torch.profiler itself writes these lines to stderr with profile_memory and with_stack; silencing it would "
        "change the user's own log level",
        lambda program, difference, _: (
            difference.field == "stderr"
            and program.recorder == "profile deep"
            and (_equal_without(difference, _KINETO) or difference.recorded == "[")  # a file of one byte
        ),
    ),
    DocumentedDifference(
        "tensors that PyTorch reads",
        "with with_stack, torch.profiler itself reads parameters and gradients once per window, in the user's calls; a "
        "TorchFunctionMode of the user's sees that, also with torch.profiler alone",
        lambda program, difference, _: (
            difference.field == "calls torch function"
            and program.recorder == "profile deep"
            and 0 < int(difference.recorded) - int(difference.plain) <= _PARAMETER_READS
        ),
    ),
    DocumentedDifference(
        "a block that never ends",
        "a signal handler that raises before the first instruction of __exit__ leaves any block of Python's open; a "
        "recording then ends when the program drops that exception, whose traceback holds the block",
        lambda program, difference, _: _is_before_exit(program.name) and difference.field.startswith("left behind: "),
    ),
    DocumentedDifference(
        "frames in tracebacks",
        "a printed traceback names the frames of gpulab's hooks, and in a cell the line below the magic",
        lambda _, difference, __: difference.field in ("stderr", "outcome") and _equal_without(difference, _FRAMES),
    ),
    DocumentedDifference(
        "interrupts by a property",
        "a KeyboardInterrupt that a user's property or __len__ raises when gpulab reads it is taken for Ctrl-C",
        lambda program, difference, recorded: (
            difference.field == "outcome"
            and "keyboard" in program.name
            and recorded.outcome.origin.startswith("capture/hooks/loader_settings.py")
        ),
    ),
    DocumentedDifference(
        "profile function",
        "at level deep, torch.profiler itself replaces the function of sys.setprofile to record Python stacks",
        lambda program, difference, _: (
            program.recorder == "profile deep"
            and "profile function" in program.name
            and difference.field in ("notes", "calls profile call", "calls profile return")
        ),
    ),
    DocumentedDifference(
        "patches on a virtual GPU",
        "a patch of torch.cuda made on a virtual GPU ends with it, because it may wrap functions of that GPU",
        lambda program, difference, _: (
            program.recorder == "virtual" and difference.field.startswith("left behind: patch torch.cuda.")
        ),
    ),
    DocumentedDifference(
        "cache of the virtual GPU",
        "the virtual GPU keeps the shapes of operators that it computed in the user's cache folder",
        lambda program, difference, _: (
            program.recorder == "virtual"
            and difference.field == "left behind: files"
            and {"/gpulab/virtual_gpu/" in name for name in _new_files(difference)} == {True}
        ),
    ),
    DocumentedDifference(
        "random numbers of the virtual GPU",
        "with a virtual GPU as default device, random tensors do not come from the generator of the CPU",
        lambda program, difference, _: (
            program.recorder == "virtual"
            and "default device" in program.name
            and difference.field == "left behind: random states torch"
        ),
    ),
    DocumentedDifference(
        "one recording at a time",
        "a recording cannot start on a virtual GPU, which is one itself: CaptureError says so",
        lambda program, difference, __: (
            program.recorder == "virtual"
            and "nests a" in program.name
            and (
                difference.field in ("notes", "value", "outcome") or difference.field.startswith("left behind: patch ")
            )
        ),
    ),
    DocumentedDifference(
        "Ctrl-C before the cell",
        "IPython cannot stop a cell from an event before it, so gpulab sends the interrupt to the cell again",
        lambda program, difference, _: (
            program.recorder.startswith("cell")
            and difference.field == "verdict"
            and difference.recorded == "the handler ran 2 times"
        ),
    ),
    DocumentedDifference(
        "SystemExit after a cell",
        "a SystemExit of a signal handler at the first instruction of the callback after a cell leaves IPython before "
        "the recording stops; the next cell ends it",
        lambda program, difference, _: (
            program.name.startswith("SystemExit at magics/cell_hook.py:after:-1")
            and difference.field.startswith("left behind: ")
        ),
    ),
    DocumentedDifference(
        "exceptions in collections",
        "Python itself drops an exception that a signal handler raises in a callback of the garbage collector",
        lambda program, difference, __: (
            difference.field == "verdict"
            and difference.recorded.endswith("in hook capture/hooks/gc_and_compilation.py was swallowed")
        ),
    ),
    DocumentedDifference(
        "exceptions in destructors",
        "Python itself drops an exception that a signal handler raises in a destructor or a callback of weakref",
        lambda program, difference, __: (
            difference.field == "verdict"
            and difference.recorded.endswith("was swallowed")
            and any(name in program.name for name in ("__del__", "_weakrefset.py:_remove"))
        ),
    ),
    DocumentedDifference(
        "recursion depth",
        "gpulab's hooks use a few frames of the recursion limit, so endless recursion ends a few calls earlier",
        lambda _, difference, recorded: (
            (difference.field.startswith("calls ") or _ends_elsewhere(difference))
            and any(kind == "RecursionError" for _, kind, _ in recorded.outcome.chain)
        ),
    ),
    DocumentedDifference(
        "workers that die",
        "where a worker process dies, it depends on the moment which of its exceptions PyTorch raises",
        lambda program, difference, _: (
            any(death in program.name for death in ("raises exit", "raises keyboard", "interrupts"))
            and any(workers in program.name for workers in ("one worker", "two workers"))
            and _is_of_a_dead_worker(difference)
        ),
    ),
    DocumentedDifference(
        "PyTorch interrupted",
        "an exception of a signal handler inside PyTorch's own no_grad() leaves gradients off, recorded or not",
        lambda _, difference, recorded: (
            difference.field == "left behind: torch settings gradients" and "program" in recorded.recorded
        ),
    ),
    DocumentedDifference(
        "locals",
        "before Python 3.13, reading the variables of a frame refreshes the dict that locals() returned to the program",
        lambda program, difference, _: difference.field == "notes" and "locals are kept" in program.name,
    ),
    DocumentedDifference(
        "objects that torch.profiler reads",
        "at level deep, torch.profiler itself reads the modules and optimizers whose calls it records, through modes "
        "of the program",
        lambda program, difference, recorded: (
            program.recorder == "profile deep"
            and difference.field == "outcome"
            and any(name in program.name for name in ("module class", "groups raise", "function mode"))
            and not recorded.outcome.origin.startswith("capture")
        ),
    ),
    DocumentedDifference(
        "messages of asyncio",
        "asyncio writes at the end of a process which tasks it destroyed, in no certain order",
        lambda _, difference, __: difference.field == "stderr" and "Task " in difference.plain,
    ),
)


def _is_before_exit(program: str) -> bool:
    """Whether the signal came as `__exit__` of a recording or of a virtual GPU was called."""
    match = re.search(r" at (\S+):__exit__:(-?\d+) visit 1$", program)
    first_line = _FIRST_LINES.get(match[1]) if match else None
    return match is not None and first_line is not None and int(match[2]) <= first_line


_FIRST_LINES = {
    "capture/profile_block.py": ProfiledBlock.__exit__.__code__.co_firstlineno,
    "virtual/session.py": VirtualGpu.__exit__.__code__.co_firstlineno,
}
_PARAMETER_READS = 64  # in two windows
_KINETO = re.compile(
    r"\[W.* (?:CPUAllocator\.cpp:\d+\] Memory block of unknown size"
    r"|profiler_python\.cpp:\d+\] Warning: Python replay stack is empty).*\n?"
)
_FRAMES = re.compile(
    r"^[ |]*File \"[^\"]*/gpulab/[^\"]*\", line \d+, in .*\n(?:[ |]{4,}(?!File).*\n)*"
    r"|<ipython-input-[^>]*>\", line \d+",
    re.MULTILINE,
)


_IGNORED_OF_WORKERS = re.compile(
    r"Exception ignored in: <function _MultiProcessingDataLoaderIter\.__del__ .*\n"
    r"Traceback .*\n(?: .*\n)+RuntimeError: DataLoader worker .*\n"
)


def _equal_without(difference: Difference, pattern: re.Pattern[str]) -> bool:
    plain, recorded = (text.replace("\\n", "\n") for text in (difference.plain, difference.recorded))
    return pattern.sub("", recorded) == pattern.sub("", plain)


def _is_of_a_dead_worker(difference: Difference) -> bool:
    """Whether both outcomes are exceptions of a dead DataLoader worker, or stderr differs in that of its iterator."""
    if difference.field == "stderr":
        return _equal_without(difference, _IGNORED_OF_WORKERS)
    causes = ("DataLoader worker", "ConnectionResetError", "FileNotFoundError", "EOFError")
    texts = (difference.plain, difference.recorded)
    return difference.field == "outcome" and all(any(cause in text for cause in causes) for text in texts)


def _ends_elsewhere(difference: Difference) -> bool:
    """Whether both tracebacks on stderr are of one endless recursion, and differ in its innermost frame only."""
    if difference.field != "stderr":
        return False
    texts = [text.replace("\\n", "\n") for text in (difference.plain, difference.recorded)]
    plain, recorded = (set(_FRAMES.sub("", text).splitlines()) for text in texts)
    other = {line for line in plain ^ recorded if "RecursionError" not in line}
    return all("RecursionError" in text for text in texts) and sum(" File " in line for line in other) <= 1


def _new_files(difference: Difference) -> set[str]:
    """The files that only the recorded run left, without folders and with the end of their folder's name."""
    files = {name.strip("[]' ") for name in difference.recorded.split(",")}
    return {f"/{name}/" for name in files - {"home/", "tmp/", "work/"}}


def documented_reason(program: Program, difference: Difference, recorded: Observation) -> str | None:
    """Return the name of the entry that accepts a difference; None if it is a defect."""
    return next((entry.name for entry in DOCUMENTED if entry.accepts(program, difference, recorded)), None)
