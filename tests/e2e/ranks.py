"""Runs trainings whose ranks psctl starts, for tests."""
import os
import subprocess

PSCTL = os.path.abspath("tools/cli/psctl")


def train(ranks, program, *arguments, owners=(), timeout_s=90):
    """Returns what the ranks print. `owners` are texts such as "owner0=127.0.0.1:7071"; without
    them psctl starts a registrar. Fails with the ranks' output after `timeout_s`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PSD_")}
    clean["PATH"] = os.path.abspath("server/daemon") + ":" + clean["PATH"]
    flags = [flag for owner in owners for flag in ("--owner", owner)]
    try:
        done = subprocess.run(
            [PSCTL, "run", "-n", str(ranks), *flags, "--", os.path.abspath(program), *arguments],
            env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as expired:
        raise AssertionError("not done after %d s: %s\n%s" % (
            timeout_s, expired.stdout, expired.stderr)) from expired
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
