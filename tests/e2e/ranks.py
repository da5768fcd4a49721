"""Runs trainings whose ranks psctl starts, for tests."""
import os
import subprocess

PSCTL = os.path.abspath("tools/cli/psctl")


def start(ranks, program, *arguments, flags=()):
    """Starts a training. `flags` are those of psctl run. Without owners psctl starts a registrar."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PSD_")}
    clean["PATH"] = os.path.abspath("server/daemon") + ":" + clean["PATH"]
    return subprocess.Popen(
        [PSCTL, "run", "-n", str(ranks), *flags, "--", os.path.abspath(program), *arguments],
        env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True)


def train(ranks, program, *arguments, owners=(), timeout_s=90):
    """Returns what the ranks print. `owners` are texts such as "owner0=127.0.0.1:7071". Fails with
    the ranks' output after `timeout_s`."""
    flags = [flag for owner in owners for flag in ("--owner", owner)]
    with start(ranks, program, *arguments, flags=flags) as job:
        try:
            output, errors = job.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            job.kill()
            raise AssertionError("not done after %d s: %s\n%s" % (
                timeout_s, expired.stdout, expired.stderr)) from expired
    assert job.returncode == 0, output + errors
    return output


def pid_of(job, rank):
    """Returns the process id of a rank of a training that was started."""
    with open("/proc/%d/task/%d/children" % (job.pid, job.pid), encoding="utf-8") as file:
        children = file.read().split()
    for child in children:
        with open("/proc/%s/environ" % child, "rb") as file:
            if b"PSD_RANK=%d" % rank in file.read().split(b"\0"):
                return int(child)
    raise AssertionError("rank %d does not run" % rank)
