"""Alerts: conditions in plain words or typed Python, watched with hysteresis, delivered without blocking.

measures     what can be compared with a limit
alert        one alert as a value
parsing      an alert from plain words
windows      means over the time that an alert asks for
engine       which alerts begin and end at a moment
memory_trend when the memory of a GPU will run out
advice       what the process did, and what to do first
delivery     the log, a callback, a webhook; a thread, so that no receiver delays the watch
"""

from gpulab.watch.alerts.alert import Alert, QuietHours
from gpulab.watch.alerts.parsing import parse_alert

__all__ = ["Alert", "QuietHours", "parse_alert"]
