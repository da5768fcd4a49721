"""Child processes that end with their parent, whatever ends it.

Each child asks the kernel at its start to be killed when its parent dies. It leads a process group
of its own, so that its own children end with it, and so that Ctrl-C reaches only the parent, which
then stops all children in order.
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
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.05


class Stopped(Exception):
    """Raised when a signal has asked this process to stop."""

    def __init__(self, signal_number):
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class ChildFailed(Exception):
    """Raised when a child has ended with an error, or has ended and should not have."""


class StopRequest:
    """The signals that asked this process to stop; a context manager that listens for them.

    A signal is only recorded, and check() raises it. So a signal may arrive at any moment, even
    while a child is being started or stopped, and no child is forgotten.
    """

    def __init__(self):
        self._received = []
        self._handlers = {}

    def __enter__(self):
        for number in _STOP_SIGNALS:
            # If SIGHUP is ignored, nohup wants this, and it stays ignored. SIGINT is handled even
            # if it was ignored: a script lets programs that it starts in the background ignore it, and
            # then nobody could stop this program in the usual way.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._handlers[number] = signal.signal(
                number, lambda received, _frame: self._received.append(received))
        return self

    def __exit__(self, *_):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def count(self):
        """Returns the number of signals that have arrived."""
        return len(self._received)

    def check(self):
        """Raises Stopped with the first signal, if one has arrived."""
        if self._received:
            raise Stopped(self._received[0])


def _die_with(parent):
    """Runs in the child, before it becomes the program."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request
        os._exit(1)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class Child:
    """One running program. Its output goes line by line to `lines`; it keeps the last lines."""

    def __init__(self, name, command, lines, may_end, worth_keeping):
        self.name = name
        self.may_end = may_end
        self._worth_keeping = worth_keeping
        self.last_lines = collections.deque(maxlen=_LAST_LINES)
        parent = os.getpid()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=lambda: _die_with(parent))
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def _read(self, lines):
        with self.process.stdout as output:
            for raw in output:
                line = raw.decode(errors="replace").strip("\r\n")
                if self._worth_keeping(line):
                    self.last_lines.append(line)
                lines.put((self.name, line))

    def finished(self):
        """Returns whether it has ended and all its output is in `lines`."""
        return self.process.poll() is not None and not self._reader.is_alive()

    def signal_group(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def describe_end(self):
        """Returns how it ended, and its last output. Requires: it has ended."""
        self._reader.join(timeout=10)
        code = self.process.returncode
        how = "exit code %d" % code if code >= 0 else "signal %s" % signal.Signals(-code).name
        said = "".join("\n  %s: %s" % (self.name, line) for line in self.last_lines)
        return "%s ended (%s)%s" % (self.name, how, said or "; it printed nothing")


class Group:
    """Children that live and end together; a context manager.

    Once `stop_request` has a signal, check() and next_line() raise Stopped, and so does the end of
    the context, after all children have ended. A second signal while they are being stopped kills
    them.
    """

    def __init__(self, stop_request, stop_timeout_s=10.0):
        self.lines = queue.Queue()
        self._children = []
        self._stop_request = stop_request
        self._stop_timeout_s = stop_timeout_s

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self.stop()
        if failure is None:
            self._stop_request.check()

    def start(self, name, command, may_end=False, worth_keeping=lambda line: True):
        """Starts a child. `may_end`: the child is expected to end by itself, without an error.
        `worth_keeping`: returns whether a line of its output is worth showing when it fails."""
        try:
            child = Child(name, command, self.lines, may_end, worth_keeping)
        except OSError as error:
            raise ChildFailed("cannot start %s: %s" % (name, error)) from error
        self._children.append(child)
        return child

    def check(self):
        """Raises Stopped if a signal has arrived, and ChildFailed if a child has ended with an
        error, or has ended and should not have."""
        self._stop_request.check()
        for child in self._children:
            code = child.process.poll()
            if code is not None and (code != 0 or not child.may_end):
                raise ChildFailed(child.describe_end())

    def drained(self, some):
        """Returns whether all children in `some` have finished and all lines were taken."""
        return all(child.finished() for child in some) and self.lines.empty()

    def next_line(self, timeout_s):
        """Returns (name, line), or None if no line came in time. Raises Stopped like check()."""
        self._stop_request.check()
        try:
            return self.lines.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def stop(self):
        """Stops the children that still run, the newest first, by SIGTERM, then by SIGKILL."""
        until = time.monotonic() + self._stop_timeout_s
        # The first signal may be the reason for this call. One more signal means: kill at once.
        most_signals = max(1, self._stop_request.count())
        for child in reversed(self._children):
            if child.process.poll() is None:
                child.signal_group(signal.SIGTERM)
                self._wait(child, until, most_signals)
        for child in self._children:
            child.signal_group(signal.SIGKILL)  # also for processes that the child left behind
            child.process.wait()
        self._children.clear()

    def _wait(self, child, until, most_signals):
        """Waits until the child has ended, the time is over, or more than `most_signals` came."""
        while time.monotonic() < until and self._stop_request.count() <= most_signals:
            try:
                child.process.wait(timeout=_POLL_S)
                return
            except subprocess.TimeoutExpired:
                pass
        print("%s does not stop; killing it" % child.name, file=sys.stderr)
