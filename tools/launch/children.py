"""Child processes that end with their parent, whatever ends it.

A child is told on start to die with its parent; it leads a process group of its own, so that what
it starts ends with it, and so that Ctrl-C reaches only the parent, which then stops all in order.
"""
import collections
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time

_LAST_LINES = 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class Stopped(Exception):
    """This process was asked to stop by a signal."""

    def __init__(self, signal_number):
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class ChildFailed(Exception):
    """A child ended when it should not have, or with an error."""


def raise_on_signals():
    """From now on SIGINT, SIGTERM and SIGHUP raise Stopped in the main thread, once."""

    def handler(number, _frame):
        ignore_signals()
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def ignore_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _die_with(parent):
    """Runs in the child, before it becomes the program."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Child:
    """One running program. Its output goes line by line to `lines`, the last ones are kept."""

    def __init__(self, name, command, lines, may_end):
        self.name = name
        self.may_end = may_end
        self.last_lines = collections.deque(maxlen=_LAST_LINES)
        parent = os.getpid()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
            preexec_fn=lambda: _die_with(parent))
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def _read(self, lines):
        with self.process.stdout as output:
            for line in output:
                line = line.rstrip("\n")
                self.last_lines.append(line)
                lines.put((self.name, line))

    def finished(self):
        """Whether it has ended and all that it said is in `lines`."""
        return self.process.poll() is not None and not self._reader.is_alive()

    def signal_group(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def describe_end(self):
        """How it ended, and what it said last. Requires: it has ended."""
        self._reader.join(timeout=1)
        code = self.process.returncode
        how = "exit code %d" % code if code >= 0 else "signal %s" % signal.Signals(-code).name
        said = "".join("\n  %s: %s" % (self.name, line) for line in self.last_lines)
        return "%s ended (%s)%s" % (self.name, how, said or "; it printed nothing")


class Group:
    """Children that live and end together; a context manager."""

    def __init__(self, stop_timeout_s=10.0):
        self.lines = queue.Queue()
        self._children = []
        self._stop_timeout_s = stop_timeout_s

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ignore_signals()
        self.stop()

    def start(self, name, command, may_end=False):
        """`may_end`: it is expected to end by itself, without an error."""
        try:
            child = Child(name, command, self.lines, may_end)
        except OSError as error:
            raise ChildFailed("cannot start %s: %s" % (name, error)) from error
        self._children.append(child)
        return child

    def check(self):
        """Raises ChildFailed if a child has ended that should not have, or with an error."""
        for child in self._children:
            code = child.process.poll()
            if code is not None and (code != 0 or not child.may_end):
                raise ChildFailed(child.describe_end())

    def drained(self, some):
        """Whether all of `some` have finished and all lines are taken."""
        return all(child.finished() for child in some) and self.lines.empty()

    def next_line(self, timeout_s):
        """(name, line), or None if nothing was said in time."""
        try:
            return self.lines.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def stop(self):
        """Stops those still running, the newest first, by SIGTERM, then by SIGKILL."""
        until = time.monotonic() + self._stop_timeout_s
        for child in reversed(self._children):
            if child.process.poll() is None:
                child.signal_group(signal.SIGTERM)
                self._wait(child, until)
        for child in self._children:
            child.signal_group(signal.SIGKILL)  # also what a child has left behind
            child.process.wait()
        self._children.clear()

    @staticmethod
    def _wait(child, until):
        try:
            child.process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            print("%s does not stop; killing it" % child.name, file=sys.stderr)
