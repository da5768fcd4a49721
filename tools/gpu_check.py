"""The program of tools/gpu_check, which describes it."""
import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time

PAGE = "docs/benchmarks/gpu.md"
# Each test needs a GPU for most of its cases.
TARGETS = ["//tests/core/device/cuda:gpu_test", "//tests/core/device_kernels/cuda:gpu_kernels_test"]
BENCH = "//bench:bench"
CHECKERS = ["memcheck", "racecheck", "initcheck"]
# The cases that checkers run. They take a hundred times as long as without a checker.
CHECKED = {"gpu_test": "*", "gpu_kernels_test": "*Seeds/*/0"}
LIMIT_S, QUICK_LIMIT_S = 9 * 60, 3 * 60
COUNTS = re.compile(r"^\[  (PASSED|SKIPPED|FAILED) *\] (\d+) tests?[.,]", re.MULTILINE)


class NoAnswer(Exception):
    """Why nothing can be checked here."""


def name_of(target):
    return target.partition(":")[2]


def find_gpus():
    """Returns (name, driver, memory) of each GPU."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer("this machine has no NVIDIA GPU: nvidia-smi: %s" % error) from error
    gpus = [[field.strip() for field in line.split(",")] for line in found.stdout.splitlines()]
    if found.returncode != 0 or not gpus or any(len(gpu) != 3 for gpu in gpus):
        raise NoAnswer("this machine has no NVIDIA GPU: %s" % found.stdout.strip())
    return gpus


def build(folder):
    """Builds all programs and copies them to `folder`, without their debug information."""
    command = ["bazel", "build", "-c", "opt", "--config=cuda", "--strip=always", *TARGETS, BENCH]
    if subprocess.run(command, check=False).returncode != 0:
        raise NoAnswer("the programs could not be built")
    os.makedirs(folder, exist_ok=True)
    for target in [*TARGETS, BENCH]:
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


def measure(folder, gpus, until):
    """Runs the benchmark's cases of devices.

    Returns whether all that ran succeeded, an outcome for the page, the results as the benchmark
    gives them, and what it said of cases without a result.
    """
    devices = ",".join("cuda:%d" % number for number in range(gpus))
    command = [os.path.join(folder, name_of(BENCH)), "--json", "--only=gpu_*",
               "--devices=" + devices]
    left = until - time.monotonic()
    if left < 1:
        return True, "not run: there was no time left", [], []
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             errors="replace", timeout=left, check=False)
        out, err, outcome = ran.stdout, ran.stderr, "exit %d" % ran.returncode
        good = ran.returncode == 0
    except subprocess.TimeoutExpired as ended:
        out, err = [(text or b"").decode(errors="replace") for text in (ended.stdout, ended.stderr)]
        outcome, good = "stopped: it had not ended when the time was over", False
    if not good:
        print(err)
    # A line that a timeout has cut off is no result.
    results = [json.loads(line) for line in out.splitlines() if line.endswith("}")]
    if good and results:
        outcome = "%d measured" % len(results)
    said = [line.split(": ", 1) for line in err.splitlines() if line.startswith("gpu_")]
    return good and bool(results), outcome, results, said


def number(value, unit=""):
    return "" if value is None else "%.4g%s" % (value, unit)


def results_table(results):
    """Returns the lines of the page that show what the benchmark measured."""
    if not results:
        return []
    lines = ["", "The [cases](README.md#on-gpus) of the benchmark. `efficiency` is the floor's time "
             "÷ psd's.", "", "| case | value | unit | floor | efficiency | spread |",
             "|---|---|---|---|---|---|"]
    for row in results:
        spread = row["spread"] if row["spread"] is None else 100 * row["spread"]
        lines.append("| `%s` | %s | %s | %s | %s | %s |" % (
            row["case"], number(row["value"]), row["unit"], number(row["floor"]),
            number(row["efficiency"]), number(spread, " %")))
    return lines


def check(folder, gpus, quick, until):
    """Runs everything.

    Returns whether all went well, the rows (what, outcome) of the page, and the results of the
    benchmark.
    """
    rows, good = [], True
    for target in TARGETS:
        passed, outcome = run([os.path.join(folder, name_of(target))], until)
        good = good and passed
        rows.append(("`%s`" % name_of(target), outcome))
    passed, outcome, results, said = measure(folder, gpus, until)
    good = good and passed
    rows.append(("cases of the benchmark", outcome))
    rows += [("`%s`" % case, why.replace("|", "\\|")) for case, why in said]
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
    return good, rows, results


def page(gpus, rows, results):
    name, driver, memory = gpus[0]
    count = "" if len(gpus) == 1 else "%d x " % len(gpus)
    return "\n".join(
        ["# Benchmarks on GPUs", "",
         "Written by `tools/gpu_check` on %s." % datetime.date.today().isoformat(), "",
         "GPU: %s%s, %s. Driver: %s." % (count, name, memory, driver), "", "| what | outcome |", "|---|---|",
         *["| %s | %s |" % row for row in rows],
         *results_table(results), ""])


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/gpu_check")
    parser.add_argument("--quick", action="store_true", help="leave out the checkers")
    parser.add_argument("--pack", metavar="FOLDER", help="only build the programs, into FOLDER")
    parser.add_argument("--tests", metavar="FOLDER", help="run the programs of FOLDER")
    parser.add_argument("--page", default=PAGE, help="the file to write")
    options = parser.parse_args(arguments)
    try:
        if options.pack:
            build(options.pack)
            return 0
        gpus = find_gpus()
        folder = options.tests
        if folder is None:
            folder = "/tmp/psd_gpu_check.%d" % os.getuid()
            build(folder)
        missing = [name for name in map(name_of, [*TARGETS, BENCH])
                   if not os.path.exists(os.path.join(folder, name))]
        if missing:
            raise NoAnswer("%s has no %s; make it with --pack" % (folder, ", ".join(missing)))
    except NoAnswer as why:
        print("tools/gpu_check: %s" % why, file=sys.stderr)
        return 2
    until = time.monotonic() + (QUICK_LIMIT_S if options.quick else LIMIT_S)
    good, rows, results = check(folder, len(gpus), options.quick, until)
    text = page(gpus, rows, results)
    with open(options.page, "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
