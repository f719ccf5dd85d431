"""Parse the command line, call a command, print its text, return the exit status."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpulab.cli.options import parse_options
from gpulab.cli.program import ProgramNotFoundError, program_of
from gpulab.errors import GpulabError

if TYPE_CHECKING:
    from gpulab.cli.output import Output

USAGE_ERROR, INTERRUPTED = 2, 130


def main(arguments: Sequence[str]) -> int:
    """Run one command and print its result. Return the exit status: 2, with the reason on stderr, if it failed.

    `gpulab run` raises what ends the program, so that Python ends this process as it would end the program's.
    """
    options = parse_options(arguments)
    if options.command == "run":
        try:
            _run(options)
        except ProgramNotFoundError as problem:  # any other GpulabError is the program's own
            return _usage_error(problem)
        return 0
    try:
        output = _command(options)(options)
    except GpulabError as problem:
        return _usage_error(problem)
    except KeyboardInterrupt:
        sys.stderr.write("\ngpulab: interrupted\n")
        return INTERRUPTED
    sys.stdout.write(f"{output.text}\n")
    return output.status


def _usage_error(problem: GpulabError) -> int:
    from gpulab.views.terminal import in_shell_terms

    sys.stderr.write(f"gpulab: {in_shell_terms(str(problem))}\n")
    return USAGE_ERROR


def console() -> None:
    """The console script `gpulab`."""
    sys.exit(main(sys.argv[1:]))


def _run(options: Namespace) -> None:
    from gpulab.cli.run_command import RunOptions, run_command

    run_command(
        RunOptions(
            program=program_of(options.program, options.module),
            level=options.level,
            steps=options.steps,
            out=options.out,
            virtual=options.virtual,
            overwrite=options.overwrite,
            quiet=options.quiet,
        )
    )


def _command(options: Namespace) -> Callable[[Namespace], Output]:
    from gpulab.cli import commands

    function: Callable[[Namespace], Output] = getattr(commands, f"run_{options.command}")
    return function
