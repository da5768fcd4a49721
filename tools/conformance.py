#!/usr/bin/env python3
"""Implements tools/conformance, which describes it."""
import collections
import glob
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROWS = "docs/conformance/rows.tsv"
PAGE = "docs/conformance.md"
MARKS = {"C": "must hold", "N": "better than PyTorch", "X": "does not apply"}
SECTIONS = {
    "RPC": "Calls",
    "RREF": "References",
    "DAG": "Distributed autograd",
    "OPT": "Optimizers",
    "ZERO": "Sharded optimizers",
    "DDP": "Data parallelism",
}
APART = {"OPT", "ZERO", "DDP"}  # sections that are not in the total of all rows

# id "RPC-12"; behaviour and note are sentences; is_open: known to have no test.
Row = collections.namedtuple("Row", "id mark is_open behaviour note")
# label "//tests/core/rpc:rpc_agent_test", name "RpcAgentTest.RPC_13_CallsItself".
Test = collections.namedtuple("Test", "label name")


class CannotSay(Exception):
    """Says why there is no answer."""


def section_of(row_id):
    return row_id.split("-")[0]


# ---- rows


def parse_rows(text):
    """Returns the rows of the table in their order. Raises CannotSay for a line that is no row."""
    rows, seen = [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        where = "%s:%d: " % (ROWS, number)
        fields = line.split("\t")
        if len(fields) != 5:
            raise CannotSay(where + "%d fields, not id, mark, state, behaviour, note" % len(fields))
        row = Row(fields[0], fields[1], fields[2] == "open", fields[3], fields[4])
        if not re.fullmatch(r"(%s)-\d\d" % "|".join(SECTIONS), row.id) or row.id in seen:
            raise CannotSay(where + "id '%s' is malformed, or there twice" % row.id)
        if row.mark not in MARKS or fields[2] not in ("", "open") or not row.behaviour:
            raise CannotSay(where + "mark is C, N or X; state is empty or open; say the behaviour")
        if (row.mark == "X" or row.is_open) and not row.note:
            raise CannotSay(where + "the note must say why")
        seen.add(row.id)
        rows.append(row)
    return rows


def ids_in(test_name):
    """Returns the ids of rows in a test's name: RPC_12_RPC_59, OPT_24_28, DAG_41_to_44."""
    ids = []
    for match in re.finditer(r"(?<![A-Za-z])(%s)((?:_(?:to_)?\d\d(?!\d))+)" % "|".join(SECTIONS),
                             test_name):
        section = match.group(1)
        for to, number in re.findall(r"_(to_)?(\d\d)", match.group(2)):
            first = int(ids[-1][-2:]) + 1 if to and ids else int(number)
            ids += ["%s-%02d" % (section, n) for n in range(first, int(number) + 1)]
    return list(dict.fromkeys(ids))


# ---- what Bazel built and ran


def bazel(*arguments):
    done = subprocess.run(("bazel",) + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise CannotSay("bazel %s:\n%s" % (" ".join(arguments), done.stderr))
    return done.stdout


def path_of(label):
    return label[2:].replace(":", "/")


def read_gtest_list(text):
    """Returns the names of the tests that --gtest_list_tests printed."""
    names, suite = [], ""
    for line in text.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  ") and suite:
            names.append(suite + name.strip())
        elif re.fullmatch(r"[\w/]+\.", name):
            suite = name
    return names


def gtest_names(label, program):
    if not os.access(program, os.X_OK):
        raise CannotSay("%s is not built: bazel build //tests/..." % label)
    done = subprocess.run((program, "--gtest_list_tests"), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise CannotSay("%s --gtest_list_tests: exit status %d" % (program, done.returncode))
    return read_gtest_list(done.stdout)


def python_names(path):
    """Returns the names of the test functions of a Python file."""
    with open(path, encoding="utf-8") as source:
        return re.findall(r"^\s*def (test_\w+)\(", source.read(), re.MULTILINE)


def python_files(rules_xml):
    """Returns, by label of a shell test, the paths of the Python files that it runs."""
    files = {}
    for rule in ElementTree.fromstring(rules_xml).iter("rule"):
        labels = {label.get("value") for label in rule.findall("list[@name='data']/label")}
        files[rule.get("name")] = sorted(path_of(x) for x in labels if x.endswith("_test.py"))
    return files


def find_tests(bin_folder):
    """Returns all tests that name a row."""
    programs = bazel(
        "query", "kind('cc_test rule', rdeps(//tests/..., @com_google_googletest//:all))"
        " except rdeps(//tests/..., //tests/fuzz:fuzz_driver)"
        " except attr(tags, '\\bmanual\\b', //tests/...)")
    shells = bazel("query", "--output=xml", "kind('sh_test rule', //tests/...)")
    tests = []
    for label in sorted(programs.split()):
        for name in gtest_names(label, os.path.join(bin_folder, path_of(label))):
            tests.append(Test(label, name))
    for label, paths in sorted(python_files(shells).items()):
        for path in paths:
            tests += [Test(label, name) for name in python_names(path)]
    return [test for test in tests if ids_in(test.name)]


def read_results(text):
    """Returns "passed" or "failed" by name for the cases of a test.xml that ran. The name "" stands
    for the whole program, if the file does not list its cases."""
    results = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        if case.get("status") == "notrun" or case.get("result") in ("suppressed", "skipped"):
            continue
        failed = case.find("failure") is not None or case.find("error") is not None
        name = "%s.%s" % (case.get("classname"), case.get("name"))
        known = case.get("classname") is not None and case.get("status") is not None
        name = name if known and case.get("result") is not None else ""
        results[name] = "failed" if failed or results.get(name) == "failed" else "passed"
    return results


def find_results(tests, log_folder):
    """Returns "passed", "failed" or "not run" by test."""
    by_label = {}
    for label in {test.label for test in tests}:
        merged = by_label.setdefault(label, {})
        for path in sorted(glob.glob(os.path.join(log_folder, path_of(label), "**", "test.xml"),
                                     recursive=True)):
            with open(path, encoding="utf-8") as log:
                for name, result in read_results(log.read()).items():
                    merged[name] = "failed" if "failed" in (result, merged.get(name)) else result
    return {
        test: by_label[test.label].get(test.name) or by_label[test.label].get("", "not run")
        for test in tests
    }


# ---- the report


def tests_by_row(rows, tests):
    """Returns the tests by id of their row. Raises CannotSay if a test names an unknown row."""
    shown = {row.id: [] for row in rows}
    for test in tests:
        for row_id in ids_in(test.name):
            if row_id not in shown:
                raise CannotSay("%s %s names %s, which is not in %s" % (*test, row_id, ROWS))
            shown[row_id].append(test)
    return shown


def state_of(row, tests, results):
    """Returns one of: does not apply, open, no test, tested, passed, failed, not run."""
    if row.mark == "X":
        return "does not apply"
    if not tests:
        return "open" if row.is_open else "no test"
    if results is None:
        return "tested"
    states = {results[test] for test in tests}
    return next(state for state in ("failed", "not run", "passed") if state in states)


def problems(rows, shown, states):
    """Returns one line for each problem."""
    found = []
    for row in rows:
        state = states[row.id]
        if state in ("no test", "failed", "not run"):
            found.append("%s: %s" % (row.id, state))
        if row.is_open and shown[row.id]:
            found.append("%s has a test: it is not open any more; say so in %s" % (row.id, ROWS))
    return found


def total(name, rows, states):
    """Returns, for example, "total: C 147/147 N 20/22 X 10"."""
    parts = []
    for mark in MARKS:
        mine = [states[row.id] for row in rows if row.mark == mark]
        good = sum(state in ("tested", "passed") for state in mine)
        parts.append("X %d" % len(mine) if mark == "X" else "%s %d/%d" % (mark, good, len(mine)))
    return "%s: %s" % (name, " ".join(parts))


def report(rows, shown, states):
    """Returns one line per row, and the totals."""
    lines = []
    for row in rows:
        names = [test.name for test in shown[row.id]] or ([row.note] if row.note else [])
        lines.append("\t".join([row.id, row.mark, states[row.id], " ".join(names)]).rstrip())
    for section in SECTIONS:
        mine = [row for row in rows if section_of(row.id) == section]
        lines.append(total(section, mine, states))
    lines.append(total("total", [r for r in rows if section_of(r.id) not in APART], states))
    return lines


def page(rows, shown, states):
    """Returns docs/conformance.md. It names test targets, not tests, so that it seldom changes."""
    lines = [
        "# Conformance", "",
        "What psd promises of calls, references, distributed autograd and optimizers, and the tests",
        "that show it. The behaviours are those of PyTorch's `torch.distributed.rpc` and of its",
        "ZeroRedundancyOptimizer, and of fairseq's LegacyDistributedDataParallel, in psd's terms:",
        "gradients live in contexts and parameters in versions, so what is said there of a",
        "parameter's `.grad` holds here for the gradient that a context has.", "",
        "Marks: **C** must hold; **N** PyTorch has a gap or a defect here, psd does better; **X**",
        "does not apply. The specification has other marks in a few rows: there ZERO-33, ZERO-35,",
        "DDP-12, DDP-23 and DDP-24 are C, and here they are X for the reasons that they give; ZERO-34",
        "is C there and N here; DDP-25 is X there and C here. Rows with two marks there are C here.",
        "",
        "Written by `tools/conformance --write` from `docs/conformance/rows.tsv` and the test",
        "programs: a test shows RPC-12 if its name says `RPC_12`. `tools/conformance` prints every",
        "row with its tests; `tools/conformance --mutate` switches on the faults of",
        "`docs/conformance/faults.tsv`, one at a time, and shows that each turns a row red.", "",
        "    " + total("total", [r for r in rows if section_of(r.id) not in APART], states),
    ]
    for section, title in SECTIONS.items():
        mine = [row for row in rows if section_of(row.id) == section]
        lines += ["", "## " + title, "", "    " + total(section, mine, states), "",
                  "| id | mark | behaviour | shown by |", "|---|---|---|---|"]
        for row in mine:
            labels = sorted({path_of(test.label) for test in shown[row.id]})
            where = ", ".join("`%s`" % label for label in labels) or row.note
            where = "open: " + where if row.is_open else where
            lines.append("| %s | %s | %s | %s |" % (row.id, row.mark, row.behaviour, where))
    return "\n".join(lines) + "\n"


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def main(arguments):
    flags = [a for a in arguments if a not in ("--run", "--write")]
    rows = parse_rows(read(ROWS))
    folders = dict(line.split(": ", 1) for line in
                   bazel("info", *flags, "bazel-bin", "bazel-testlogs").splitlines())
    tests = find_tests(folders["bazel-bin"])
    shown = tests_by_row(rows, tests)
    found = {row.id: state_of(row, shown[row.id], None) for row in rows}
    text = page(rows, shown, found)
    if "--write" in arguments:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
    states = found
    if "--run" in arguments:
        results = find_results(tests, folders["bazel-testlogs"])
        states = {row.id: state_of(row, shown[row.id], results) for row in rows}
    wrong = problems(rows, shown, states)
    if read(PAGE) != text:
        wrong.append("%s is stale: tools/conformance --write" % PAGE)
    lines = report(rows, shown, states)
    for line in lines[:-1] + ["wrong: " + line for line in wrong] + lines[-1:]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CannotSay as reason:
        print("tools/conformance: %s" % reason, file=sys.stderr)
        sys.exit(2)
