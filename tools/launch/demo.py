"""Implements tools/demo: builds psd, starts two owners and two trainers, shows their progress."""
import argparse
import collections
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import build  # noqa: E402
import children  # noqa: E402
import progress  # noqa: E402

FASHION_FOLDER = "/usr/share/datasets/fashion-mnist"
DAEMON = "//server/daemon:psd"
# The folder of the example, and the unit that it counts in.
DataSet = collections.namedtuple("DataSet", "example unit")
DATA_SETS = {"fashion": DataSet("examples/fashion_mnist", "images"),
             "adult": DataSet("examples/wide_deep_adult", "rows")}
OWNERS = 2
TRAINERS = 2
EPOCHS = 10
START_TIMEOUT_S = 20.0
EVALUATE_TIMEOUT_S = 60.0

NEXT_COMMANDS = (
    ("bazel run -c opt //server/daemon:psd -- --dev", "an owner of your own, on 127.0.0.1:7071"),
    ("bazel run -c opt //examples/quickstart:train", "train on it; then change train.cc"),
    ("tools/psctl status", "see what the owner holds"),
)
# Paths of the three programs, the data, the training's length, the device of the owners on which
# the parameters live (None: their CPU), and whether they and the trainers use shared memory.
Plan = collections.namedtuple(
    "Plan", "psd train evaluate data epochs seconds unit device shared_memory",
    defaults=("images", None, True))
Result = collections.namedtuple("Result", "accuracy tested train_s per_s unit")


def format_result(result):
    return "result: accuracy=%.4f train_s=%.1f %s_per_s=%.0f" % (
        result.accuracy, result.train_s, result.unit, result.per_s)


def build_programs(example, device, stop_request):
    """Builds the programs, for this device of the owners; returns their folder."""
    flags = ["-c", "opt", build.cache_flag(), *build.PROGRESS_FLAGS]
    if device is not None and device.startswith("cuda:"):
        flags.append("--config=cuda")
    targets = [DAEMON, "//%s:train" % example, "//%s:evaluate" % example]
    line = progress.ProgressLine(plain_interval_s=build.LOG_LINE_S)
    line.print("building psd, optimised (the first time takes some minutes)")
    start = time.monotonic()
    state = build.BuildProgress("building psd")
    run_bazel(["build", *flags, *targets], stop_request, state.take,
              lambda: line.show(state.text()))
    line.print("built in %s" % build.format_time(time.monotonic() - start))
    return run_bazel(["info", *flags, "bazel-bin"], stop_request).last_lines[-1]


def run_bazel(arguments, stop_request, on_line=lambda line: None, on_wait=lambda: None):
    child = build.run(arguments, stop_request, on_line, on_wait)
    if child.process.returncode != 0:
        raise children.ChildFailed(child.describe_end())
    return child


def start_owners(group, plan, folder):
    """Returns name=address of each owner, once all are ready."""
    owners = []
    for i in range(OWNERS):
        name = "owner%d" % i
        path = os.path.join(folder, name)
        command = [plan.psd, "--name=" + name, "--listen=127.0.0.1:0", "--address_file=" + path,
                   "--log_level=warning"]
        if owners:
            command.append("--registrar=" + owners[0])
        if plan.device is not None:
            command.append("--devices=" + plan.device)
        if not plan.shared_memory:
            command.append("--shared_memory=false")
        group.start(name, command)
        owners.append("%s=%s" % (name, wait_for_address(group, name, path)))
    return owners


def wait_for_address(group, name, path):
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        group.check()
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        except FileNotFoundError:
            time.sleep(0.01)
    raise children.ChildFailed("%s is not ready after %.0f s" % (name, START_TIMEOUT_S))


def train(group, plan, owners, line):
    """Runs the trainers to their end; returns (seconds, how many images or rows)."""
    where = [] if plan.device is None else ["--device=" + plan.device]
    trainers = [
        group.start("trainer%d" % i, [
            plan.train, "--name=trainer%d" % i, "--owners=" + ",".join(owners),
            "--data=" + plan.data, "--part=%d/%d" % (i, TRAINERS), "--epochs=%d" % plan.epochs,
            "--seconds=%g" % plan.seconds, "--progress_for_programs", *where
        ], may_end=True) for i in range(TRAINERS)
    ]
    reports, totals = {}, {}
    while not group.drained(trainers):
        item = group.next_line(0.1)
        if item is None:
            group.check()
            continue
        take_line(item, reports, totals)
        if len(reports) == TRAINERS:
            line.show(progress.combine(list(reports.values())))
    group.check()
    if len(totals) < TRAINERS:
        raise children.ChildFailed("a trainer ended without saying what it did")
    line.show(progress.combine(list(reports.values())), now=True)
    line.end()
    return (max(t["seconds"] for t in totals.values()), sum(t[plan.unit] for t in totals.values()))


def take_line(item, reports, totals):
    """Stores a trainer's report or total under its name; drops other lines, which are log."""
    name, text = item
    report = progress.parse_report(text)
    if report:
        reports[name] = report
    elif text.startswith("trained: "):
        totals[name] = progress.parse_fields(text[len("trained: "):])


def evaluate(group, plan, owners):
    """Returns (accuracy, how many images or rows it was measured on)."""
    child = group.start("evaluate", [plan.evaluate, "--owners=" + ",".join(owners),
                                     "--data=" + plan.data], may_end=True)
    until = time.monotonic() + EVALUATE_TIMEOUT_S
    said = None
    while not group.drained([child]):
        item = group.next_line(0.1)
        if item and item[0] == "evaluate" and item[1].startswith("accuracy="):
            said = progress.parse_fields(item[1])
        if time.monotonic() > until:
            raise children.ChildFailed("evaluate takes too long")
    group.check()
    if said is None:
        raise children.ChildFailed("evaluate gave no accuracy")
    return said["accuracy"], said[plan.unit]


def run(plan, line, stop_request):
    """Starts everything, trains, evaluates, stops everything."""
    with tempfile.TemporaryDirectory(prefix="psd-demo-") as folder, \
            children.Group(stop_request) as group:
        owners = start_owners(group, plan, folder)
        print("started %d owners and %d trainers: %s" % (OWNERS, TRAINERS, ", ".join(owners)),
              flush=True)
        seconds, seen = train(group, plan, owners, line)
        accuracy, tested = evaluate(group, plan, owners)
    return Result(accuracy, tested, seconds, seen / seconds if seconds > 0 else 0.0, plan.unit)


def guarded(action, line):
    """Calls `action` with the StopRequest that it must obey; returns the exit code."""
    with children.StopRequest() as stop_request:
        try:
            action(stop_request)
            return 0
        except children.Stopped as stopped:
            line.end()
            print("demo: stopped by %s" % stopped, file=sys.stderr)
            return 128 + stopped.signal_number
        except children.ChildFailed as failure:
            line.end()
            print("demo: %s" % failure, file=sys.stderr)
            return 1


def find_data(name, file):
    """Returns the path that the example reads."""
    path = file if file is not None else FASHION_FOLDER
    if os.path.exists(path):
        return os.path.abspath(path)
    if name == "fashion":
        raise children.ChildFailed(
            "no data in %s; install the package dataset-fashion-mnist" % path)
    raise children.ChildFailed("%s does not exist; it should be UCI's adult.data, from "
                               "https://archive.ics.uci.edu/dataset/2/adult" % path)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="tools/demo", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="train for a few seconds only")
    parser.add_argument("--data", choices=sorted(DATA_SETS), default="fashion",
                        help="what to train on (default: fashion)")
    parser.add_argument("--file", help="adult: the path of UCI's adult.data; "
                        "fashion: the folder of the four files")
    parser.add_argument("--device", help="fashion: the device of the owners that keeps the "
                        "parameters: cuda:0, or emu:0, which is emulated and slow")
    parser.add_argument("--no_shared_memory", action="store_true",
                        help="owners and trainers talk over TCP, as between hosts")
    parsed = parser.parse_args(arguments)
    if parsed.device is not None and parsed.data != "fashion":
        parser.error("--device works with --data fashion only")
    if parsed.data == "adult" and parsed.file is None:
        parser.error("--data adult needs --file PATH: UCI's adult.data, from "
                     "https://archive.ics.uci.edu/dataset/2/adult")
    return parsed


def print_result(result):
    print("test accuracy: %.2f %% of %s %s" %
          (100 * result.accuracy, "{:,.0f}".format(result.tested), result.unit))
    print("try next, each in a terminal of its own:")
    for command, purpose in NEXT_COMMANDS:
        print("  %-46s # %s" % (command, purpose))
    print(format_result(result))


def main():
    arguments = parse_arguments()
    data_set = DATA_SETS[arguments.data]
    line = progress.ProgressLine()

    def demo(stop_request):
        data = find_data(arguments.data, arguments.file)
        programs = build_programs(data_set.example, arguments.device, stop_request)
        example = os.path.join(programs, data_set.example)
        plan = Plan(psd=os.path.join(programs, "server/daemon/psd"),
                    train=os.path.join(example, "train"),
                    evaluate=os.path.join(example, "evaluate"), data=data, epochs=EPOCHS,
                    seconds=4 if arguments.quick else 0, unit=data_set.unit,
                    device=arguments.device, shared_memory=not arguments.no_shared_memory)
        print_result(run(plan, line, stop_request))

    return guarded(demo, line)


if __name__ == "__main__":
    sys.exit(main())
