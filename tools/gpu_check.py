"""The program of tools/gpu_check, which describes it."""
import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import time

PAGE = "docs/benchmarks/gpu.md"
# Each test needs a GPU for most of its cases.
TARGETS = ["//tests/core/device/cuda:gpu_test", "//tests/core/device_kernels/cuda:gpu_kernels_test"]
CHECKERS = ["memcheck", "racecheck", "initcheck"]
# The cases that checkers run. They take a hundred times as long as without a checker.
CHECKED = {"gpu_test": "*", "gpu_kernels_test": "*Seeds/*/0"}
LIMIT_S, QUICK_LIMIT_S = 9 * 60, 3 * 60
COUNTS = re.compile(r"^\[  (PASSED|SKIPPED|FAILED) *\] (\d+) tests?[.,]", re.MULTILINE)


class NoAnswer(Exception):
    """Why nothing can be checked here."""


def name_of(target):
    return target.partition(":")[2]


def find_gpu():
    """Returns (name, driver, memory) of the first GPU."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer("this machine has no NVIDIA GPU: nvidia-smi: %s" % error) from error
    fields = [field.strip() for field in found.stdout.partition("\n")[0].split(",")]
    if found.returncode != 0 or len(fields) != 3:
        raise NoAnswer("this machine has no NVIDIA GPU: %s" % found.stdout.strip())
    return fields


def build(folder):
    """Builds the tests and copies them to `folder`, without their debug information."""
    command = ["bazel", "build", "-c", "opt", "--config=cuda", "--strip=always", *TARGETS]
    if subprocess.run(command, check=False).returncode != 0:
        raise NoAnswer("the tests could not be built")
    os.makedirs(folder, exist_ok=True)
    for target in TARGETS:
        to = os.path.join(folder, name_of(target))
        shutil.copyfile("bazel-bin/" + target[2:].replace(":", "/"), to)
        os.chmod(to, 0o755)


def run(command, until):
    """Runs a test. Returns whether its cases passed, and an outcome for the page."""
    left = until - time.monotonic()
    if left < 1:
        return False, "not run: there was no time left"
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace", timeout=left, check=False)
    except subprocess.TimeoutExpired as ended:
        print((ended.stdout or b"").decode(errors="replace"))
        return False, "stopped: it had not ended when the time was over"
    counts = {kind.lower(): int(count) for kind, count in COUNTS.findall(ran.stdout)}
    passed = ran.returncode == 0 and counts.get("passed", 0) > 0 and not counts.get("skipped")
    if not passed:
        print(ran.stdout)
    outcome = ", ".join("%d %s" % (counts[kind], kind)
                        for kind in ("passed", "failed", "skipped") if kind in counts)
    if ran.returncode != 0 and not counts.get("failed"):
        outcome = "exit %d; %s" % (ran.returncode, outcome or "no case ended")
    return passed, outcome or "no case ran"


def checker_command(checker, binary):
    return ["compute-sanitizer", "--tool", checker, "--error-exitcode", "1", binary,
            "--gtest_filter=" + CHECKED[os.path.basename(binary)]]


def check(folder, quick, until):
    """Runs everything. Returns whether all went well, and the rows (what, outcome) of the page."""
    rows, good = [], True
    for target in TARGETS:
        passed, outcome = run([os.path.join(folder, name_of(target))], until)
        good = good and passed
        rows.append(("`%s`" % name_of(target), outcome))
    for checker in CHECKERS:
        for target in TARGETS:
            what = "`%s` under compute-sanitizer's %s" % (name_of(target), checker)
            if quick:
                rows.append((what, "not run: --quick"))
            elif shutil.which("compute-sanitizer") is None:
                rows.append((what, "not run: there is no compute-sanitizer"))
            else:
                command = checker_command(checker, os.path.join(folder, name_of(target)))
                passed, outcome = run(command, until)
                good = good and (passed or outcome.startswith("not run"))
                rows.append((what, outcome))
    rows.append(("GPU cases of the benchmark", "not run: the benchmark has none yet"))
    return good, rows


def page(gpu, rows):
    name, driver, memory = gpu
    return "\n".join(
        ["# Benchmarks on GPUs", "",
         "Written by `tools/gpu_check` on %s." % datetime.date.today().isoformat(), "",
         "GPU: %s, %s. Driver: %s." % (name, memory, driver), "", "| what | outcome |", "|---|---|",
         *["| %s | %s |" % row for row in rows], ""])


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/gpu_check")
    parser.add_argument("--quick", action="store_true", help="leave out the checkers")
    parser.add_argument("--pack", metavar="FOLDER", help="only build the tests, into FOLDER")
    parser.add_argument("--tests", metavar="FOLDER", help="run the tests of FOLDER")
    parser.add_argument("--page", default=PAGE, help="the file to write")
    options = parser.parse_args(arguments)
    try:
        if options.pack:
            build(options.pack)
            return 0
        gpu = find_gpu()
        folder = options.tests
        if folder is None:
            folder = "/tmp/psd_gpu_check.%d" % os.getuid()
            build(folder)
        missing = [t for t in map(name_of, TARGETS) if not os.path.exists(os.path.join(folder, t))]
        if missing:
            raise NoAnswer("%s has no %s; make it with --pack" % (folder, ", ".join(missing)))
    except NoAnswer as why:
        print("tools/gpu_check: %s" % why, file=sys.stderr)
        return 2
    until = time.monotonic() + (QUICK_LIMIT_S if options.quick else LIMIT_S)
    good, rows = check(folder, options.quick, until)
    text = page(gpu, rows)
    with open(options.page, "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
