"""The program of tools/gpu_check, which describes it. Also runs without psd's sources, in a folder
that --pack has made."""
import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TEST, BENCH = "gpu_test", "bench"
# A line of text for the page, if --pack made the folder.
NOTE = "note.txt"

CHECKERS = ["memcheck", "racecheck", "initcheck"]
# The tests that checkers run: those of the device and its kernels, and not those of workers, whose
# seeds are called Orders. With one seed only, because they take a hundred times as long as without a
# checker.
CHECKED = "CudaSuite.*:*Seeds/*/0"
# The tests of groups, whose ranks need a GPU each.
GROUPS = "GpuGroupSuite.*"
# The efficiency that the cases of the benchmark shall reach, by the beginning of their names. The first
# entry that fits counts.
AIMS = [("gpu_opt_small", 0.4), ("gpu_opt_", 0.85), ("gpu_rows_", 0.6), ("gpu_pull_", 0.85),
        ("gpu_step_adam", 0.7)]
# One that was skipped, and why.
SKIPPED_GROUP = re.compile(r": Skipped\n(.*)\n(?:(?!\[).*\n)*\[  SKIPPED \] GpuGroupSuite\.",
                           re.MULTILINE)
# CUDA's errors are left to the tests, some of which provoke them.
CHECKER_FLAGS = ["--report-api-errors", "no", "--error-exitcode", "1"]
# What compute-sanitizer says where it cannot or may not work.
REFUSED = re.compile(r"^=+ ((?:Internal )?(?:Sanitizer )?Error:.*|.*not supported.*|"
                     r".*(?:Unable|Failed) to.*|.*[Pp]ermission.*)$", re.MULTILINE)
# What it says of something that it found: a summary at the end, or the thing itself.
FOUND = re.compile(r"^=+ (?:\w+ SUMMARY: (?!0 errors|0 hazards).*[1-9]|Invalid |Uninitialized |"
                   r"(?:Error|Warning): Race|Program hit ).*$", re.MULTILINE)

# The limits leave some seconds for stopping what has not ended.
LIMIT_S, QUICK_LIMIT_S = 9 * 60 - 20, 3 * 60 - 20
# The share of this time by which a part must have ended.
TESTS_END, BENCH_END, SASS_END = 0.35, 0.75, 0.8
QUICK_BENCH_END = 0.95
QUICK_BLOCKS = 3

ARCHITECTURES = [80, 90, 100]  # as in third_party/cuda/cuda_library.bzl
# The kernels of optimizers by their mangled names, and those of f32 among them.
STEP_KERNEL = re.compile(r"StepKernelI|RowsBody|StepRowwiseBody")
F32_STEP_KERNEL = re.compile(r"StepKernelIf")
LOCAL_MEMORY = re.compile(r"\b(?:LDL|STL)\b")
WIDE_LOAD, WIDE_STORE = re.compile(r"\bLDG\.\S*(?:128|256)"), re.compile(r"\bSTG\.\S*(?:128|256)")

COUNTS = re.compile(r"^\[  (PASSED|SKIPPED|FAILED) *\] (\d+) tests?[.,]", re.MULTILINE)
BEGUN = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
ENDED = re.compile(r"^\[ +(?:OK|FAILED|SKIPPED) \] (\S+) \(", re.MULTILINE)
NO_TIME = "not run: there was no time left"


class NoAnswer(Exception):
    """Why nothing can be checked here."""


class Ran:
    """A process that has ended, or was stopped: then its status is None."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def show(self):
        print(self.out + self.err)


def run(command, until):
    """Runs a command, and stops it with all its children at `until`. Returns None if that is now."""
    start = time.monotonic()
    if until - start < 1:
        return None
    # Files, because a child that stays would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                 start_new_session=True)
        status = None
        try:
            status = child.wait(timeout=until - start)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
        if status is None:
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                print("%s cannot be stopped; the driver may hang" % command[0], file=sys.stderr)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Ran(status, *texts, time.monotonic() - start)


def find_gpus():
    """Returns (name, driver, memory, compute capability) of each GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap",
               "--format=csv,noheader"]
    try:
        ran = run(command, time.monotonic() + 30)
    except OSError as error:
        raise NoAnswer("this machine has no NVIDIA GPU: nvidia-smi: %s" % error) from error
    gpus = [[field.strip() for field in line.split(",")] for line in ran.out.splitlines()]
    if ran.status != 0 or not gpus or any(len(gpu) != 4 for gpu in gpus):
        said = (ran.out + ran.err).strip() or "nvidia-smi says nothing"
        raise NoAnswer("this machine has no NVIDIA GPU: %s" % said)
    return gpus


def find_tool(name):
    """Returns the path of a program of the toolkit, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which(name) or shutil.which(name, path=os.path.join(home, "bin"))


# ---- the tests

def case_under_way(out):
    """Returns " in CASE" for the case of a test that had begun and not ended, or ""."""
    begun, ended = BEGUN.findall(out), set(ENDED.findall(out))
    return next((" in %s" % case for case in reversed(begun) if case not in ended), "")


def judge_test(ran):
    """Returns whether all cases of a test passed but groups, which may be skipped, and an outcome
    for the page."""
    if ran is None:
        return False, NO_TIME
    if ran.status is None:
        return False, "stopped after %d s%s: it had not ended" % (
            ran.seconds, case_under_way(ran.out))
    counts = {kind.lower(): int(count) for kind, count in COUNTS.findall(ran.out)}
    outcome = ", ".join("%d %s" % (counts[kind], kind)
                        for kind in ("passed", "failed", "skipped") if kind in counts)
    if ran.status != 0 and not counts.get("failed"):
        outcome = "exit %d%s; %s" % (ran.status, case_under_way(ran.out), outcome or "no count")
    may_skip = len(SKIPPED_GROUP.findall(ran.out))
    good = (ran.status == 0 and counts.get("passed", 0) > 0 and
            counts.get("skipped", 0) <= may_skip)
    return good, outcome or "no case ran"


def why_no_groups(gpus, ran):
    """Returns why the tests of groups did not run; None if they did, or should have."""
    if gpus < 2:
        return "they need 2 GPUs, and this machine has %d" % gpus
    skipped = SKIPPED_GROUP.search(ran.out) if ran is not None else None
    return skipped and skipped.group(1)


# ---- the benchmark

def bench_cases(folder, until):
    """Returns the names of the benchmark's cases for GPUs."""
    ran = run([os.path.join(folder, BENCH), "--help"], min(until, time.monotonic() + 20))
    found = re.search(r"^cases: (.*)$", ran.out, re.MULTILINE) if ran is not None else None
    return re.findall(r"\bgpu_\w+", found.group(1)) if found else []


def judge_case(name, ran):
    """Returns whether a case was measured or cannot be here, an outcome for the page if it was not
    measured, and its result."""
    if ran is None:
        return True, NO_TIME, None
    if ran.status is None:
        return False, "stopped after %d s: it had not ended" % ran.seconds, None
    try:
        results = [json.loads(line) for line in ran.out.splitlines() if line.startswith("{")]
    except ValueError:
        return False, "its result cannot be read", None
    if ran.status == 0 and len(results) == 1:
        return True, None, results[0]
    said = [line[len(name) + 2:] for line in ran.err.splitlines() if line.startswith(name + ": ")]
    outcome = said[-1] if said else "exit %d" % ran.status
    return ran.status == 0 and outcome.startswith("not run"), outcome, None


def measure(folder, gpus, blocks, until):
    """Runs each case in its own process, because a GPU that one has lost is lost to its process.

    Returns whether no case failed and one was measured, rows for the page, and the results.
    """
    devices = ",".join("cuda:%d" % number for number in range(gpus))
    cases = bench_cases(folder, until)
    good, rows, results = True, [], []
    for index, case in enumerate(cases):
        now = time.monotonic()
        # The first may take longer than the later ones, so that one that hangs leaves time for them.
        end = min(until, now + max(10, 2 * (until - now) / (len(cases) - index)))
        ran = run([os.path.join(folder, BENCH), "--json", "--only=" + case,
                   "--devices=" + devices, *blocks], end)
        passed, outcome, result = judge_case(case, ran)
        good = good and passed
        if result is not None:
            results.append(result)
        else:
            rows.append(("`%s`" % case, outcome))
            if not passed:
                ran.show()
    count = "%d of %d measured" % (len(results), len(cases))
    return good and bool(results), [("cases of the benchmark", count), *rows], results


# ---- the toolkit's programs

def checker_name(checker):
    return "`%s` under compute-sanitizer's %s" % (TEST, checker)


def judge_checker(ran):
    """Returns whether a checker found nothing, and an outcome for the page."""
    if ran is None:
        return True, NO_TIME
    good, outcome = judge_test(ran)
    found = FOUND.search(ran.out)
    if found:
        return False, "%s; %s" % (found.group(0).strip("= "), outcome)
    refused = REFUSED.search(ran.out + ran.err)
    if refused and not BEGUN.search(ran.out):
        return True, "not run: compute-sanitizer says: %s" % refused.group(1)
    if ran.status is None:
        passed = len(re.findall(r"^\[ +OK \]", ran.out, re.MULTILINE))
        return True, "not run to the end: %s; %d cases had passed, and nothing was found" % (
            outcome, passed)
    return good, outcome


def run_checkers(folder, until):
    tool = find_tool("compute-sanitizer")
    good, rows = True, []
    for index, checker in enumerate(CHECKERS):
        ran = None
        if tool is None:
            passed, outcome = True, "not run: there is no compute-sanitizer"
        else:
            now = time.monotonic()
            ran = run([tool, "--tool", checker, *CHECKER_FLAGS, os.path.join(folder, TEST),
                       "--gtest_filter=" + CHECKED], now + (until - now) / (len(CHECKERS) - index))
            passed, outcome = judge_checker(ran)
        if not passed:
            ran.show()
        good = good and passed
        rows.append((checker_name(checker), outcome))
    return good, rows


def judge_sass(text):
    """Returns whether the machine code of the optimizers' kernels is as it should be, and an
    outcome for the page."""
    kernels = {}
    for function in text.split("Function : ")[1:]:
        name, _, code = function.partition("\n")
        if STEP_KERNEL.search(name):
            kernels[name.strip()] = code
    f32 = [name for name in kernels if F32_STEP_KERNEL.search(name)]
    if not f32:
        return False, "no kernel of an optimizer was found"
    local = [name for name, code in kernels.items() if LOCAL_MEMORY.search(code)]
    narrow = [name for name in f32
              if not (WIDE_LOAD.search(kernels[name]) and WIDE_STORE.search(kernels[name]))]
    for names, fault in ((local, "local memory"), (narrow, "no loads and stores of 128 bits")):
        if names:
            return False, "%d kernels have %s, such as `%s`" % (len(names), fault, names[0])
    return True, ("none of %d kernels of optimizers has local memory; all %d of f32 load and store "
                  "128 bits" % (len(kernels), len(f32)))


def check_sass(folder, capability, until):
    """Reads the machine code that this GPU runs. Returns as judge_sass."""
    tool = find_tool("cuobjdump")
    if tool is None:
        return True, "not run: there is no cuobjdump"
    gpu = int(capability.replace(".", ""))
    fitting = [each for each in ARCHITECTURES if each <= gpu and each // 10 == gpu // 10]
    if not fitting:
        return True, "not run: the programs have only PTX for sm_%d" % gpu
    ran = run([tool, "-sass", "-arch", "sm_%d" % fitting[-1], os.path.join(folder, TEST)], until)
    if ran is None:
        return True, NO_TIME
    if ran.status != 0:
        why = "it had not ended" if ran.status is None else "exit %d" % ran.status
        return True, "not run: cuobjdump: %s" % (ran.err.strip().partition("\n")[0] or why)
    return judge_sass(ran.out)


# ---- all of it

SASS = "machine code of `%s`" % TEST


def check(folder, gpus, quick, start):
    """Runs everything.

    Returns whether all went well, the rows (what, outcome) of the page, and the results of the
    benchmark.
    """
    limit = QUICK_LIMIT_S if quick else LIMIT_S
    filters = ["--gtest_filter=-" + GROUPS] if len(gpus) < 2 else []
    ran = run([os.path.join(folder, TEST), *filters], start + TESTS_END * limit)
    good, outcome = judge_test(ran)
    if not good and ran is not None:
        ran.show()
    rows = [("`%s`" % TEST, outcome)]
    why = why_no_groups(len(gpus), ran)
    if why:
        rows.append(("groups of GPUs in `%s`" % TEST, "not run: " + why))
    blocks = ["--blocks=%d" % QUICK_BLOCKS] if quick else []
    passed, more, results = measure(folder, len(gpus), blocks,
                                    start + (QUICK_BENCH_END if quick else BENCH_END) * limit)
    good, rows = good and passed, rows + more
    passed, outcome = check_sass(folder, gpus[0][3], start + (1 if quick else SASS_END) * limit)
    good, rows = good and passed, rows + [(SASS, outcome)]
    if quick:
        return good, rows + [(checker_name(each), "not run: --quick") for each in CHECKERS], results
    passed, more = run_checkers(folder, start + limit)
    return good and passed, rows + more, results


def number(value, unit=""):
    return "" if value is None else "%.4g%s" % (value, unit)


def aim_of(case):
    """Returns the efficiency that the case shall reach; None if there is no such number."""
    return next((aim for start, aim in AIMS if case.startswith(start)), None)


def results_table(results):
    """Returns the lines of the page that show what the benchmark measured."""
    if not results:
        return []
    lines = ["", "The [cases](README.md#on-gpus) of the benchmark. `efficiency` is the floor's time "
             "÷ psd's, and `aim` is what it shall reach.", "",
             "| case | value | unit | floor | efficiency | aim | spread |",
             "|---|---|---|---|---|---|---|"]
    for row in results:
        spread = row["spread"] if row["spread"] is None else 100 * row["spread"]
        efficiency, aim = row["efficiency"], aim_of(row["case"])
        below = None not in (aim, efficiency) and efficiency < aim
        lines.append("| `%s` | %s | %s | %s | %s | %s | %s |" % (
            row["case"], number(row["value"]), row["unit"], number(row["floor"]),
            number(efficiency), number(aim, ", **below**" if below else ""), number(spread, " %")))
    return lines


def page(gpus, quick, note, rows, results):
    name, driver, memory, _ = gpus[0]
    count = "" if len(gpus) == 1 else "%d x " % len(gpus)
    return "\n".join(
        ["# Benchmarks on GPUs", "",
         "Written by `tools/gpu_check%s` on %s.%s" % (
             " --quick" if quick else "", datetime.date.today().isoformat(), note), "",
         "GPU: %s%s, %s. Driver: %s." % (count, name, memory, driver), "",
         "| what | outcome |", "|---|---|",
         *["| %s | %s |" % (what, outcome.replace("|", "\\|")) for what, outcome in rows],
         *results_table(results), ""])


def read_note(folder):
    try:
        with open(os.path.join(folder, NOTE), encoding="utf-8") as file:
            return " " + file.read().strip()
    except FileNotFoundError:
        return ""


def check_folder(folder, path, gpus, quick, start):
    """Runs the programs of a folder, and writes the page. Returns the exit status."""
    missing = [name for name in (TEST, BENCH) if not os.path.exists(os.path.join(folder, name))]
    if missing:
        raise NoAnswer("%s has no %s; make it with --pack" % (folder, ", ".join(missing)))
    good, rows, results = check(folder, gpus, quick, start)
    text = page(gpus, quick, read_note(folder), rows, results)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    return 0 if good else 1


def build_and_check(path, gpus, quick):
    import gpu_programs  # a folder that was carried does not have it
    with tempfile.TemporaryDirectory() as folder:
        try:
            gpu_programs.build(folder)
        except gpu_programs.CannotBuild as error:
            raise NoAnswer(str(error)) from error
        return check_folder(folder, path, gpus, quick, time.monotonic())


def pack(folder):
    import gpu_programs
    try:
        print(gpu_programs.pack(folder))
    except gpu_programs.CannotBuild as error:
        print("tools/gpu_check: %s" % error, file=sys.stderr)
        return 2
    return 0


def main(arguments):
    start = time.monotonic()
    carried = os.path.exists(os.path.join(HERE, TEST))
    default_page = os.path.join(HERE, "gpu.md") if carried else "docs/benchmarks/gpu.md"
    parser = argparse.ArgumentParser(prog="gpu_check.py" if carried else "tools/gpu_check")
    parser.add_argument("--quick", action="store_true",
                        help="leave out the checkers, and measure less often")
    if not carried:
        parser.add_argument("--pack", metavar="FOLDER", help="only build the programs, into FOLDER")
    parser.add_argument("--tests", metavar="FOLDER", help="run the programs of FOLDER",
                        default=HERE if carried else None)
    parser.add_argument("--page", default=default_page, help="the file to write")
    options = parser.parse_args(arguments)
    if not carried and options.pack:
        return pack(options.pack)
    try:
        gpus = find_gpus()
        if options.tests is None:
            return build_and_check(options.page, gpus, options.quick)
        return check_folder(options.tests, options.page, gpus, options.quick, start)
    except NoAnswer as why:
        print("%s: %s" % (parser.prog, why), file=sys.stderr)
        for what in ("`%s`" % TEST, "cases of the benchmark", SASS, *map(checker_name, CHECKERS)):
            print("not run: %s" % what.replace("`", ""), file=sys.stderr)
        print("%s stays as it is" % options.page, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
