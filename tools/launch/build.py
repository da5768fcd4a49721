"""Runs Bazel as a child process and reports its progress every few seconds.

Bazel itself prints nothing while the same actions run, which takes so long for psd's larger files
that Bazel seems to hang.
"""
import collections
import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import children  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Between two lines about progress where they are not rewritten in place: in a log.
LOG_LINE_S = 5.0
# A step is mostly one compilation. This is how long one takes on one core until the build at hand
# has shown better.
STEP_CORE_S = 4.0
# The number of steps of the running build that count as much as the assumption above.
TRUSTED_STEPS = 10
# The time over which the rate is measured. Cached steps are quick and say little about later ones.
RATE_WINDOW_S = 90.0
# At first Bazel keeps finding new steps. After this time without a new one it knows all of them.
SETTLED_S = 3.0

# These flags make Bazel print every second what it works on. Without a terminal it would print this
# less and less often.
PROGRESS_FLAGS = ["--curses=yes", "--color=no", "--show_progress_rate_limit=1",
                  "--terminal_columns=200"]
_STEP = re.compile(r"\[([\d,]+) / ([\d,]+)\] *(.*)")
_ACTIVITY = re.compile(r"    (?:\[\w+\] )?(\S.*); \d+s(?: [\w-]+(?:, [\w-]+)*)?$")


def cache_flag():
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                         "psd", "bazel")
    return "--disk_cache=" + cache


def is_progress(line):
    """Returns whether a line of Bazel's output is only about progress."""
    return bool(_STEP.match(line) or _ACTIVITY.match(line)
                or re.match(r"(Loading|Analyzing): ", line))


def format_time(seconds):
    return "%d:%02d" % divmod(int(seconds), 60)


class BuildProgress:
    """Turns Bazel's progress lines into one text for people. Thread-compatible."""

    def __init__(self, what, clock=time.monotonic, cores=os.cpu_count() or 1):
        self._what = what
        self._clock = clock
        self._step_s = STEP_CORE_S / cores
        self._start = clock()
        self._done = None  # steps; None while none is known
        self._total = 0
        self._settled = 0.0  # the time at which Bazel knows all steps, if none is added until then
        self._activity = ""
        self._history = collections.deque()  # (time, steps done), the oldest first

    def take(self, line):
        """Takes a line of Bazel's output: the number of steps done, or one of the running steps."""
        activity = _ACTIVITY.match(line)
        if activity:
            self._activity = self._activity or activity.group(1)
        step = _STEP.match(line)
        if step:
            self._take_step(*(int(number.replace(",", "")) for number in step.groups()[:2]))
            # If only one action runs, the same line names it.
            alone = _ACTIVITY.match("    " + step.group(3))
            self._activity = alone.group(1) if alone else ""

    def _take_step(self, done, total):
        now = self._clock()
        if total > self._total:
            self._settled = now + SETTLED_S
        self._done, self._total = done, total
        self._history.append((now, done))
        while len(self._history) > 2 and self._history[1][0] < now - RATE_WINDOW_S:
            self._history.popleft()

    def text(self):
        elapsed = format_time(self._clock() - self._start)
        if self._done is None:
            return "%s: %s elapsed, looking at what is to be done" % (self._what, elapsed)
        left = ""
        if self._clock() >= self._settled:
            left = ", about %s left" % format_time(self.left_s())
        return "%s: %s elapsed, %d of %d steps%s%s" % (
            self._what, elapsed, self._done, self._total, left,
            "; " + self._activity if self._activity else "")

    def left_s(self):
        """Returns an estimate. Requires: take() has seen a step."""
        first_time, first_done = self._history[0]
        steps = TRUSTED_STEPS + self._done - first_done
        seconds = TRUSTED_STEPS * self._step_s + self._clock() - first_time
        return (self._total - self._done) * seconds / steps


def run(arguments, stop_request, on_line, on_wait=lambda: None):
    """Runs bazel in the source tree to its end and returns the children.Child.

    `on_line` gets each line that Bazel prints; `on_wait` is called between the lines, several times
    a second. Errors: ChildFailed if Bazel cannot be started; Stopped.
    """
    os.chdir(ROOT)
    with children.Group(stop_request, stop_timeout_s=30.0) as group:
        child = group.start("bazel " + arguments[0], ["bazel", *arguments], may_end=True,
                            worth_keeping=lambda line: not is_progress(line))
        while not group.drained([child]):
            item = group.next_line(0.1)
            if item:
                on_line(item[1])
            on_wait()
    return child
