"""tools/conformance --mutate without Bazel: its input, and the results that count as red."""
import os
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, "tools")
import conformance  # noqa: E402
import mutate  # noqa: E402

TABLE = """# name	test target	what goes wrong
fork_counted_twice	//tests/a:a_test	It counts twice.
cancel_forgotten	//tests/b:b_test	It runs on.
"""
FAILED = """[ RUN      ] Ledger.RREF_31_RepeatsHaveNoEffect
a_test.cc:30: Failure
[  FAILED  ] Ledger.RREF_31_RepeatsHaveNoEffect (0 ms)
[ RUN      ] Ledger.RREF_19_AfterTheFirstFailureNothingRuns
[  SKIPPED ] Ledger.RREF_19_AfterTheFirstFailureNothingRuns (0 ms)
[==========] 1 test from 1 test suite ran. (0 ms total)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Ledger.RREF_31_RepeatsHaveNoEffect
"""
PARAMETER = "[  FAILED  ] Orders/X.DAG_41_DAG_42_Unused/3, where GetParam() = 4 (2 ms)\n"
STOPPED = """[ RUN      ] Ledger.RREF_18_ValueLives
[       OK ] Ledger.RREF_18_ValueLives (0 ms)
[ RUN      ] Ledger.RPC_34_Waits
"""
# A test program that fails or hangs if PSD_FAULT says so.
PROGRAM = """#!/bin/sh
if [ "$1" = --gtest_list_tests ]; then
  printf 'Ledger.\\n  RREF_31_Repeats\\n  Other\\n'
  exit
fi
case $* in *Other*) exit ;; esac
echo '[ RUN      ] Ledger.RREF_31_Repeats'
case $PSD_FAULT in
  fails) echo '[  FAILED  ] Ledger.RREF_31_Repeats (0 ms)' ;;
  hangs) sleep 600 ;;
  *) echo '[       OK ] Ledger.RREF_31_Repeats (0 ms)' ;;
esac
"""


class TableTest(unittest.TestCase):
    def test_reads_faults(self):
        faults = mutate.parse_faults(TABLE)
        self.assertEqual([fault.name for fault in faults],
                         ["fork_counted_twice", "cancel_forgotten"])
        self.assertEqual(faults[1].label, "//tests/b:b_test")

    def test_refuses_other_lines(self):
        for line in ["a\t//tests/a:b", "a\t//core/a:b\tIt runs.", "a\t//tests/a:b\t", "a"]:
            with self.assertRaises(conformance.CannotSay, msg=line):
                mutate.parse_faults(line)

    def test_compares_with_the_code(self):
        faults = mutate.parse_faults(TABLE)
        code = 'if (a && !FaultOn("fork_counted_twice")) return;\nif (FaultOn("new_one")) return;'
        self.assertEqual(mutate.faults_in(code), {"fork_counted_twice", "new_one"})
        self.assertEqual(mutate.disagreements(faults + faults[:1], mutate.faults_in(code)), [
            "fork_counted_twice is in docs/conformance/faults.tsv twice",
            "cancel_forgotten is not in the code",
            "new_one is not in docs/conformance/faults.tsv",
        ])

    def test_the_table_of_this_tree(self):
        self.assertGreaterEqual(len(mutate.parse_faults(conformance.read(mutate.FAULTS))), 30)


class RedRowsTest(unittest.TestCase):
    def test_failures(self):
        self.assertEqual(mutate.red_rows(FAILED), ["RREF-31"])
        self.assertEqual(mutate.red_rows(PARAMETER), ["DAG-41", "DAG-42"])

    def test_a_test_that_never_ended(self):
        self.assertEqual(mutate.red_rows(STOPPED), ["RPC-34"])

    def test_nothing_noticed(self):
        self.assertEqual(mutate.red_rows("\n".join(STOPPED.splitlines()[:2])), [])
        self.assertEqual(mutate.red_rows(""), [])


class ProgramTest(unittest.TestCase):
    def test_runs_the_tests_of_rows_with_the_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tests/a/a_test")
            os.makedirs(path + ".runfiles/psd")
            with open(path, "w", encoding="utf-8") as file:
                file.write(PROGRAM)
            os.chmod(path, stat.S_IRWXU)
            program = mutate.Program(folder, "//tests/a:a_test")
            self.assertEqual(program.red_rows(""), [])
            self.assertEqual(program.red_rows("fails"), ["RREF-31"])
            mutate.LIMIT_S = 10
            self.assertEqual(program.red_rows("hangs"), ["RREF-31"])


if __name__ == "__main__":
    unittest.main()
