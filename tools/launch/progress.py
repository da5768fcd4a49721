"""Makes one progress line from the reports of several trainers."""
import math
import shutil
import sys
import time

_PREFIX = "progress "
_RATE_SUFFIX = "_per_s"
_LIVE_INTERVAL_S = 0.2
_PLAIN_INTERVAL_S = 2.0


def parse_fields(line):
    """Returns {"a": 1.0, "b": 2.5} for "a=1 b=2.5", and None for a text of another form."""
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
    """Returns the fields of a trainer's progress line, or None for any other line."""
    if not line.startswith(_PREFIX):
        return None
    fields = parse_fields(line[len(_PREFIX):])
    wanted = {"epoch", "epochs", "step", "steps", "loss", "left_s"}
    complete = fields is not None and wanted <= set(fields) and len(_rates(fields)) == 1
    return fields if complete else None


def _rates(fields):
    return [key for key in fields if key.endswith(_RATE_SUFFIX)]


def combine(reports):
    """Returns a line for people: the slowest epoch, the sums of steps and rates, the mean loss."""
    rate = _rates(reports[0])[0]
    return "epoch %d/%d  step %d/%d  loss %.4f  %.0f %s/s  %.0f s left" % (
        min(r["epoch"] for r in reports), max(r["epochs"] for r in reports),
        sum(r["step"] for r in reports), sum(r["steps"] for r in reports),
        sum(r["loss"] for r in reports) / len(reports),
        sum(r.get(rate, 0.0) for r in reports), rate[:-len(_RATE_SUFFIX)], math.ceil(max(r["left_s"] for r in reports)))


class ProgressLine:
    """Shows a text: a line that is rewritten on a terminal, a plain line now and then elsewhere."""

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
            # A line that wraps cannot be rewritten.
            text = text[:shutil.get_terminal_size().columns - 1]
        self._out.write("\r%s\x1b[K" % text if self._live else text + "\n")
        self._out.flush()
        self._open = self._live

    def print(self, text):
        """Prints a line that stays, in place of the line that is rewritten."""
        self._out.write("\r\x1b[K" * self._open + text + "\n")
        self._out.flush()
        self._open = False

    def end(self):
        """Ends the line that is rewritten, so that further output starts on a new line."""
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False
