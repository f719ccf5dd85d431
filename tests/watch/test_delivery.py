"""Delivery of alerts: to a webhook that is dead, slow, busy or moved, without delay for the watch or others."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpulab.errors import RunError
from gpulab.watch.alerts.alert import QuietHours
from gpulab.watch.alerts.delivery import Delivery, TemporaryFailure, log_receiver
from gpulab.watch.alerts.measures import Measure
from gpulab.watch.alerts.notice import Notice
from gpulab.watch.alerts.webhook import Webhook

NOON = datetime(2026, 5, 4, 12).timestamp()
NIGHT = datetime(2026, 5, 4, 23).timestamp()
MORNING = datetime(2026, 5, 5, 7, 30).timestamp()


def notice(headline="utilisation 2 %", at_s=NOON, **more):
    return Notice(
        at_s=at_s, subject="GPU 0", measure=Measure.UTILISATION, headline=headline, activity="it sleeps", **more
    )


class Server:
    """An HTTP server whose answers are scripted: a status for each request, and the last one for all later ones."""

    def __init__(self, *answers, headers=(), delay_s=0.0):
        self.bodies, self.paths, self._answers = [], [], list(answers)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                time.sleep(delay_s)
                status = outer._answers.pop(0) if len(outer._answers) > 1 else outer._answers[0]
                outer.paths.append(self.path)
                if status == 200:
                    outer.bodies.append(json.loads(body))
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self):
                outer.paths.append(f"GET {self.path}")
                self.send_response(405)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?secret=1"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(request):
    servers = []

    def start(*answers, **options):
        servers.append(Server(*answers, **options))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def deliver(receivers, *notices, naps=None):
    """Deliver, with waits between tries that are recorded instead of slept."""
    waits = [] if naps is None else naps
    delivery = Delivery(receivers, sleep=lambda seconds: waits.append(seconds) or False)
    for each in notices:
        delivery.send(each)
    delivery.close(timeout_s=30)
    return waits


def test_a_webhook_gets_text_as_slack_expects_it(server):
    hook = server(200)
    deliver([Webhook(hook.url)], notice())
    (body,) = hook.bodies
    assert list(body) == ["text"]
    assert "GPU 0: utilisation 2 %" in body["text"]
    assert "It sleeps" in body["text"]


def test_a_busy_server_is_tried_again_with_growing_pauses(server):
    hook = server(503, 500, 429, 200)
    waits = deliver([Webhook(hook.url)], notice())
    assert len(hook.bodies) == 1
    assert waits == [1, 2, 4]


def test_a_server_that_says_when_is_asked_then(server):
    hook = server(429, 200, headers=[("Retry-After", "17")])
    assert deliver([Webhook(hook.url)], notice()) == [17]


def test_a_dead_server_costs_an_hour_of_tries_and_then_the_notice(server, caplog):
    hook = server(200)
    hook.close()
    waits = deliver([Webhook(hook.url)], notice())
    assert 3000 < sum(waits) < 7200
    assert "dropped" in caplog.text
    assert "secret" not in caplog.text


def test_a_refusal_is_not_tried_again_and_does_not_show_the_url(server, caplog):
    hook = server(404)
    assert deliver([Webhook(hook.url)], notice()) == []
    assert len(hook.paths) == 1
    assert "404" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_moved_webhook_gets_the_same_content(server, status):
    target = server(200)
    moved = server(status, headers=[("Location", target.url)])
    deliver([Webhook(moved.url)], notice())
    assert len(target.bodies) == 1
    assert not any(path.startswith("GET") for path in target.paths)


def test_a_circle_of_redirects_ends(server, caplog):
    hook = server(307, headers=[("Location", "/hook")])
    deliver([Webhook(hook.url)], notice())
    assert len(hook.paths) == 4
    assert "redirects" in caplog.text


def test_a_redirect_to_a_file_is_refused(server, caplog):
    hook = server(307, headers=[("Location", "file:///etc/passwd")])
    deliver([Webhook(hook.url)], notice())
    assert "not http" in caplog.text


def test_a_slow_server_delays_neither_the_watch_nor_other_receivers(server):
    release, fast = threading.Event(), []
    delivery = Delivery([lambda text: release.wait(60), fast.append])
    began_s = time.monotonic()
    for number in range(20):
        delivery.send(notice(f"alert {number}"))
    sent_s = time.monotonic() - began_s
    deadline_s = time.monotonic() + 60
    while len(fast) < 20 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert len(fast) == 20  # although the other receiver has not taken its first
    assert sent_s < 10
    release.set()
    delivery.close()


def test_a_timeout_is_tried_again(server):
    hook = server(200, delay_s=0.5)
    with pytest.raises(TemporaryFailure):
        Webhook(hook.url, timeout_s=0.05)("text")


def test_a_callback_that_fails_does_not_stop_the_others(caplog):
    texts = []

    def fails(text):
        raise ZeroDivisionError("mine")

    deliver([fails, texts.append], notice(), notice("again"))
    assert len(texts) == 2
    assert caplog.text.count("ZeroDivisionError") == 2


def test_the_log_has_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "gpulab.alerts"):
        deliver([log_receiver], notice())
    assert "utilisation 2 %" in caplog.text


def quiet_delivery(texts):
    return Delivery([texts.append], quiet=QuietHours.parse("22-7"))


def test_quiet_hours_hold_an_alert_back_until_the_morning():
    texts = []
    delivery = quiet_delivery(texts)
    delivery.send(notice(at_s=NIGHT))
    delivery.tick(NIGHT + 60)
    assert texts == []
    delivery.tick(MORNING)
    delivery.close()
    assert len(texts) == 1
    assert "since the quiet hours" in texts[0]


def test_what_ends_in_the_night_is_not_delivered():
    texts = []
    delivery = quiet_delivery(texts)
    delivery.send(notice(at_s=NIGHT))
    delivery.send(notice(at_s=NIGHT + 600, ended=True))
    delivery.tick(MORNING)
    delivery.close()
    assert texts == []


@pytest.mark.parametrize(("text", "at_s", "inside"), [
    ("22-7", NIGHT, True), ("22-7", NOON, False), ("22-7", MORNING, False), ("12-13", NOON, True),
    ("22:30-23:30", NIGHT, True), ("23:01-5", NIGHT, False),
])  # fmt: skip
def test_quiet_hours_may_span_midnight(text, at_s, inside):
    assert QuietHours.parse(text).include(at_s) is inside


@pytest.mark.parametrize("text", ["", "22", "22-25", "a-b", "1-2-3"])
def test_quiet_hours_that_are_none_are_refused(text):
    with pytest.raises(RunError):
        QuietHours.parse(text)


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "", "hooks.slack.com/x"])
def test_a_url_that_is_no_webhook_is_refused(url):
    with pytest.raises(RunError):
        Webhook(url)
