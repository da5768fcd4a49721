"""One progress line out of the reports of several trainers."""
import math
import shutil
import sys
import time

_PREFIX = "progress "
_RATE_SUFFIX = "_per_s"
_LIVE_INTERVAL_S = 0.2
_PLAIN_INTERVAL_S = 2.0


def parse_fields(line):
    """ "a=1 b=2.5" -> {"a": 1.0, "b": 2.5}; None if it is not of that form."""
    fields = {}
    for item in line.split():
        key, equals, value = item.partition("=")
        try:
            fields[key] = float(value)
        except ValueError:
            return None
        if not equals:
            return None
    return fields


def parse_report(line):
    """The fields of a trainer's progress line, or None for any other line."""
    if not line.startswith(_PREFIX):
        return None
    fields = parse_fields(line[len(_PREFIX):])
    wanted = {"epoch", "epochs", "step", "steps", "loss", "left_s"}
    complete = fields is not None and wanted <= set(fields) and len(_rates(fields)) == 1
    return fields if complete else None


def _rates(fields):
    return [key for key in fields if key.endswith(_RATE_SUFFIX)]


def combine(reports):
    """One line for people: the slowest epoch, steps and rates added up, the mean loss."""
    rate = _rates(reports[0])[0]
    return "epoch %d/%d  step %d/%d  loss %.4f  %.0f %s/s  %.0f s left" % (
        min(r["epoch"] for r in reports), max(r["epochs"] for r in reports),
        sum(r["step"] for r in reports), sum(r["steps"] for r in reports),
        sum(r["loss"] for r in reports) / len(reports),
        sum(r.get(rate, 0.0) for r in reports), rate[:-len(_RATE_SUFFIX)], math.ceil(max(r["left_s"] for r in reports)))


class ProgressLine:
    """Shows a text: rewritten in place on a terminal, else as a plain line now and then."""

    def __init__(self, out=sys.stdout, clock=time.monotonic, plain_interval_s=_PLAIN_INTERVAL_S):
        self._out = out
        self._clock = clock
        self._live = out.isatty()
        self._interval_s = _LIVE_INTERVAL_S if self._live else plain_interval_s
        self._last = -math.inf
        self._open = False

    def show(self, text, now=False):
        if not now and self._clock() - self._last < self._interval_s:
            return
        self._last = self._clock()
        if self._live:
            # A line that wraps could not be rewritten.
            text = text[:shutil.get_terminal_size().columns - 1]
        self._out.write("\r%s\x1b[K" % text if self._live else text + "\n")
        self._out.flush()
        self._open = self._live

    def print(self, text):
        """Prints a line that stays, in the place of the live one."""
        self._out.write("\r\x1b[K" * self._open + text + "\n")
        self._out.flush()
        self._open = False

    def end(self):
        """Ends the live line, so that what follows starts on one of its own."""
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False
