"""A psd daemon as a child process, for tests."""
import os
import resource
import select
import signal
import subprocess
import tempfile

BINARY = "server/daemon/psd"
READY_WITHIN_S = 60


class NotReady(AssertionError):
    """The daemon ended before it was ready, with the exit code `code`."""

    def __init__(self, code, errors):
        super().__init__("psd did not become ready, exit code %s:\n%s" % (code, errors))
        self.code = code
        self.errors = errors


class Psd:
    """A daemon that is started with `arguments` and killed at the end of the scope.

    `address` is known once the daemon is ready. `descriptors` limits the files that it may have
    open, and `address_space` its memory in bytes. `prefix` is a command that runs the daemon.
    """

    def __init__(self, *arguments, name="owner0", listen="127.0.0.1:0", wait=True,
                 descriptors=None, address_space=None, prefix=()):
        read_end, write_end = os.pipe()
        command = [*prefix, BINARY, "--ready_fd", str(write_end)]
        command += ["--name", name] if name else []
        command += ["--listen", listen] if listen else []
        self._stderr = tempfile.TemporaryFile()

        def limit():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            if address_space is not None:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        self.process = subprocess.Popen(
            command + list(arguments), pass_fds=[write_end], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=self._stderr, preexec_fn=limit)
        os.close(write_end)
        self.address = self._read_address(read_end) if wait else None
        os.close(read_end)

    def _read_address(self, descriptor):
        ready, _, _ = select.select([descriptor], [], [], READY_WITHIN_S)
        line = os.read(descriptor, 1000).decode() if ready else ""
        if not line.endswith("\n"):
            if not ready:
                self.process.kill()
            self.process.communicate()
            errors = self.errors()
            self._stderr.close()
            raise NotReady(self.process.returncode, errors)
        return line.strip()

    def errors(self):
        """What it has written to standard error so far."""
        file = self._stderr.fileno()
        # The process shares the file's position, so a seek would move where it writes.
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def stop(self, number=signal.SIGTERM):
        """Sends the signal, waits for the end of the daemon and returns its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self):
        self.output = self.process.communicate(timeout=60)[0].decode()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._stderr.close()


def run(*arguments):
    """Runs psd to its end. Returns (exit code, standard output, standard error)."""
    done = subprocess.run([BINARY, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
