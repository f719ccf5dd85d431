"""Differences between the versions of IPython: Colab and Kaggle run 7.34, JupyterLab 4 usually 9."""

from __future__ import annotations

import functools
import io
import tokenize
from collections.abc import Callable
from typing import Any

from IPython.core import completer as completion
from IPython.core import magic
from IPython.core.interactiveshell import InteractiveShell

NextWords = Callable[[str], tuple[str, list[str]]]
"""From the line up to the cursor to the word being typed and the words that may stand in its place."""

_LAYOUT = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
IDENTIFIER = "gpulab.matcher"
HAS_MATCHER_CONTEXT = hasattr(completion, "completion_matcher")  # IPython 8.6


def ends_with_semicolon(code: str) -> bool:
    """Whether the last token of the code is `;`, which silences the value of a cell."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return False
    last = next((token for token in reversed(tokens) if token.type not in _LAYOUT), None)
    return last is not None and last.string == ";"


def output_can_be_silenced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a magic whose value is not displayed if its line or cell ends with `;`; before IPython 8.9, drop it."""
    mark = getattr(magic, "output_can_be_silenced", None)
    if mark is not None:
        marked: Callable[..., Any] = mark(function)
        return marked

    @functools.wraps(function)
    def silenced(self: object, line: str, cell: str | None = None, **options: Any) -> Any:
        __tracebackhide__ = True
        value = function(self, line, cell, **options)
        return None if ends_with_semicolon(line if cell is None else cell) else value

    return silenced


def transformed_cell(shell: InteractiveShell, info: Any, body: str) -> str | None:
    """The Python code of the cell that is about to run; None if it cannot be transformed.

    `info`: of `pre_run_cell`; IPython 7 does not pass the code. `body`: the cell without gpulab's magic line, which is
    then transformed a second time, as IPython does for completion, too.
    """
    code: str | None = getattr(info, "transformed_cell", None)
    if code is not None:
        return code
    try:
        return str(shell.transform_cell(body))
    except Exception:  # whatever another extension's transformer raises: IPython shows it and runs nothing
        return None


def line_matcher(shell: InteractiveShell, next_words: NextWords) -> Callable[..., Any]:
    """Return a matcher for `Completer.custom_matchers` of this shell, for lines that `next_words` knows."""
    if HAS_MATCHER_CONTEXT:

        @completion.completion_matcher(identifier=IDENTIFIER, api_version=2, priority=200)
        def match_context(context: Any) -> Any:
            endings = _endings(next_words, context.text_until_cursor, context.token)
            completions = [completion.SimpleCompletion(ending, type="param") for ending in endings]
            return {"completions": completions, "suppress": bool(endings)}

        return match_context  # type: ignore[no-any-return]

    def match_token(token: str) -> list[str]:
        completer: Any = shell.Completer
        return _endings(next_words, completer.text_until_cursor, token)

    vars(match_token)["matcher_identifier"] = IDENTIFIER
    return match_token


def _endings(next_words: NextWords, text: str, token: str) -> list[str]:
    """IPython replaces its own token only, and a hyphen or a dot may end that token: return the text from there on."""
    typed, candidates = next_words(text)
    offset = len(typed) - len(token) if typed.endswith(token) else 0
    return [word[offset:] for word in candidates]
