"""A kernel, and a front end that talks to it, for the tests of the live panel and the monitor."""

from tests.support.front_end.live_panel import front, live

__all__ = ["front", "live"]
