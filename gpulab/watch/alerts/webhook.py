"""Send a notice to a webhook as {"text": ...}, which Slack, Mattermost, Rocket.Chat and Teams accept."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from typing import Any

from gpulab.errors import RunError
from gpulab.watch.alerts.delivery import TemporaryFailure

TIMEOUT_S = 10.0
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY_CODES = (408, 425, 429)


class Webhook:
    """A receiver that posts to a URL. The URL is a secret: it appears in no message.

    A redirect is followed with the same content. Raises RunError for a URL that is not http or https.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        _check(url)
        self._url, self._timeout_s = url, timeout_s
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, text: str) -> None:
        """Post a message. Raises TemporaryFailure if the server cannot take it now, RunError if it refuses it."""
        url = self._url
        for _ in range(_MAX_REDIRECTS + 1):
            location = self._post(url, text)
            if location is None:
                return
            url = urllib.parse.urljoin(url, location)
            _check(url)
        raise _refusal(f"it redirects more than {_MAX_REDIRECTS} times")

    def _post(self, url: str, text: str) -> str | None:
        """Post once; return where the server redirects to, or None if it took the message."""
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "gpulab"})
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return None
        except urllib.error.HTTPError as answer:
            with answer:
                return _location(answer)
        except (urllib.error.URLError, OSError) as problem:  # a timeout while reading is an OSError
            raise TemporaryFailure(f"no answer: {problem}") from problem


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects become errors: urllib would drop the content, or turn the request into a GET."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Message, newurl: str) -> None:
        """Follow none."""


def _location(answer: urllib.error.HTTPError) -> str:
    """Return the target of a redirect. Raises TemporaryFailure or RunError for any other answer."""
    if answer.code in _REDIRECTS and answer.headers.get("Location"):
        return str(answer.headers["Location"])
    if answer.code in _BUSY_CODES or answer.code >= 500:
        after = answer.headers.get("Retry-After", "")
        raise TemporaryFailure(f"status {answer.code}", float(after) if after.isdigit() else None)
    raise _refusal(f"it answered with status {answer.code}")


def _check(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise RunError("The webhook cannot be used.", why="its URL is not http or https", fix="copy the URL again")


def _refusal(why: str) -> RunError:
    return RunError("The webhook refused an alert.", why=why, fix="create the webhook anew, and pass its URL")
