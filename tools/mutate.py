#!/usr/bin/env python3
"""Implements tools/conformance --mutate: each fault of docs/conformance/faults.tsv, switched on
alone, must make the tests of at least one row fail."""
import collections
import os
import re
import signal
import subprocess
import sys

import conformance

FAULTS = "docs/conformance/faults.tsv"
BUILD = "--config=mutate"
LIMIT_S = 60  # a test program takes a few seconds; one that takes longer than this has failed

# label: the test program that must notice the fault; wrong: a sentence that says what goes wrong.
Fault = collections.namedtuple("Fault", "name label wrong")


def parse_faults(text):
    """Returns the faults of a table. Raises CannotSay for a line that is no fault."""
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 3 or not all(fields) or not fields[1].startswith("//tests/"):
            raise conformance.CannotSay("%s:%d: not name, test target, what goes wrong"
                                        % (FAULTS, number))
        faults.append(Fault(*fields))
    return faults


def faults_in(source):
    return set(re.findall(r'\bFaultOn\("(\w+)"\)', source))


def faults_in_code():
    names = set()
    for path, _, files in os.walk("core"):
        for file in files:
            if file.endswith((".cc", ".h")):
                names |= faults_in(conformance.read(os.path.join(path, file)))
    return names


def disagreements(faults, in_code):
    """Returns a line for each fault that is in the table twice, or in only one of table and code."""
    names = [fault.name for fault in faults]
    twice = {name for name in names if names.count(name) > 1}
    return (["%s is in %s twice" % (name, FAULTS) for name in sorted(twice)] +
            ["%s is not in the code" % name for name in sorted(set(names) - in_code)] +
            ["%s is not in %s" % (name, FAULTS) for name in sorted(in_code - set(names))])


def red_rows(output):
    """Returns the ids of rows whose tests failed, or during whose test the program died or hung."""
    failed = re.findall(r"^\[  FAILED  \] (\S+?)[,.]?(?: |$)", output, re.MULTILINE)
    began = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    ended = re.findall(r"^\[(?:       OK |  SKIPPED )\] (\S+)", output, re.MULTILINE)
    names = failed + [name for name in began if name not in ended]
    return sorted({row for name in names for row in conformance.ids_in(name)})


class Program:
    """A test program of the build with faults. Only its tests of rows are run."""

    def __init__(self, folder, label):
        self._path = os.path.abspath(os.path.join(folder, conformance.path_of(label)))
        names = conformance.gtest_names(label, self._path)
        self._rows = [name for name in names if conformance.ids_in(name)]

    def red_rows(self, fault):
        """Runs the tests with `fault` switched on ("": no fault). Returns the rows that failed."""
        command = (self._path, "--gtest_fail_fast", "--gtest_filter=" + ":".join(self._rows))
        # The program leads a process group, so that the processes that it starts end with it.
        with subprocess.Popen(command, cwd=self._path + ".runfiles/psd", start_new_session=True,
                              env=dict(os.environ, PSD_FAULT=fault), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                output = process.communicate(timeout=LIMIT_S)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output = process.communicate()[0]
        return red_rows(output.decode(errors="replace"))


def build(labels, flags):
    """Builds the programs; returns them by label."""
    done = subprocess.run(("bazel", "build", BUILD, *flags, *labels), stdin=subprocess.DEVNULL,
                          check=False)
    if done.returncode != 0:
        raise conformance.CannotSay("the programs with the faults do not build")
    folder = conformance.bazel("info", BUILD, *flags, "bazel-bin").strip()
    return {label: Program(folder, label) for label in labels}


def main(arguments):
    flags = [a for a in arguments if a != "--mutate"]
    faults = parse_faults(conformance.read(FAULTS))
    wrong = disagreements(faults, faults_in_code())
    programs = build(sorted({fault.label for fault in faults}), flags)
    for label, program in programs.items():
        rows = program.red_rows("")
        if rows:
            wrong.append("%s fails without any fault: %s" % (label, " ".join(rows)))
    noticed = 0
    for fault in faults:
        rows = programs[fault.label].red_rows(fault.name)
        noticed += bool(rows)
        print("\t".join([fault.name, "noticed" if rows else "NOT NOTICED", " ".join(rows)]).rstrip(),
              flush=True)
    for line in wrong:
        print("wrong: " + line)
    print("faults: %d/%d noticed" % (noticed, len(faults)))
    return 1 if wrong or noticed < len(faults) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except conformance.CannotSay as reason:
        print("tools/conformance: %s" % reason, file=sys.stderr)
        sys.exit(2)
