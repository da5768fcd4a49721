"""Runs trainings whose ranks psctl starts, for tests."""
import os
import subprocess

PSCTL = os.path.abspath("tools/cli/psctl")


def train(ranks, program, *arguments, owners=()):
    """Returns what the ranks print. `owners` are texts such as "owner0=127.0.0.1:7071"; without
    them psctl starts a registrar."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PSD_")}
    clean["PATH"] = os.path.abspath("server/daemon") + ":" + clean["PATH"]
    flags = [flag for owner in owners for flag in ("--owner", owner)]
    done = subprocess.run(
        [PSCTL, "run", "-n", str(ranks), *flags, "--", os.path.abspath(program), *arguments],
        env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
