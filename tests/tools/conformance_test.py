"""tools/conformance without Bazel: its input, its output and its errors."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, "tools")
import conformance  # noqa: E402

ROWS = """# id	mark	state	behaviour	note
RPC-01	C		It starts.	
RPC-02	N	open	It is better.	Later.
RREF-01	X		Python only.	No Python here.
DAG-01	C		It is distinct.	
OPT-01	C		It steps.	
"""
LIST = """Running main() from gmock_main.cc
WorkerTest.
  RPC_01_Starts
  Other
Prefix/Param.  # TypeParam = int
  DAG_01_Distinct/0  # GetParam() = 7
"""
XML = """<testsuites><testsuite name="WorkerTest">
<testcase name="RPC_01_Starts" status="run" result="completed" classname="WorkerTest" />
<testcase name="Fails" status="run" result="completed" classname="WorkerTest">
<failure message="no"/></testcase>
<testcase name="Off" status="notrun" result="suppressed" classname="WorkerTest" />
</testsuite></testsuites>"""


def row_tests():
    return [
        conformance.Test("//a:a_test", "WorkerTest.RPC_01_Starts"),
        conformance.Test("//b:b_test", "Prefix/Param.DAG_01_Distinct/0"),
        conformance.Test("//b:b_test", "OPT_01_Steps"),
    ]


class RowsTest(unittest.TestCase):
    def test_reads_rows(self):
        rows = conformance.parse_rows(ROWS)
        self.assertEqual([row.id for row in rows],
                         ["RPC-01", "RPC-02", "RREF-01", "DAG-01", "OPT-01"])
        self.assertTrue(rows[1].is_open)
        self.assertEqual(rows[2].note, "No Python here.")

    def test_refuses_bad_rows(self):
        for line in [
                "RPC-01\tC\t\tToo few",
                "RPX-01\tC\t\tUnknown section.\t",
                "RPC-01\tC\t\tOnce.\t\nRPC-01\tC\t\tTwice.\t",
                "RPC-01\tY\t\tUnknown mark.\t",
                "RPC-01\tC\tdone\tUnknown state.\t",
                "RPC-01\tC\topen\tNo reason.\t",
                "RPC-01\tX\t\tNo equivalent.\t",
                "RPC-01\tC\t\t\t",
        ]:
            with self.assertRaises(conformance.CannotSay, msg=line):
                conformance.parse_rows(line)

    def test_the_rows_of_this_tree(self):
        with open(conformance.ROWS, encoding="utf-8") as rows:
            ids = [row.id for row in conformance.parse_rows(rows.read())]
        for section, size in [("RPC", 67), ("RREF", 52), ("DAG", 60), ("OPT", 50)]:
            self.assertEqual([i for i in ids if conformance.section_of(i) == section],
                             ["%s-%02d" % (section, n) for n in range(1, size + 1)])


class NamesTest(unittest.TestCase):
    def test_ids_in_names(self):
        for name, ids in [
                ("RpcTest.RPC_12_RPC_59_Each", ["RPC-12", "RPC-59"]),
                ("OPT_24_28_34_Adamax", ["OPT-24", "OPT-28", "OPT-34"]),
                ("DAG_41_to_44_Unused", ["DAG-41", "DAG-42", "DAG-43", "DAG-44"]),
                ("test_RREF_05_owner", ["RREF-05"]),
                ("X.RPC_10_RPC_10_Twice", ["RPC-10"]),
                ("X.RPC_100_NoRow", []),
                ("X.MyRPC_10_NoRow", []),
                ("X.Nothing", []),
        ]:
            self.assertEqual(conformance.ids_in(name), ids, name)

    def test_lists_of_gtest(self):
        self.assertEqual(conformance.read_gtest_list(LIST), [
            "WorkerTest.RPC_01_Starts", "WorkerTest.Other", "Prefix/Param.DAG_01_Distinct/0"])

    def test_functions_of_python_tests(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x_test.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write("class X:\n    def test_RPC_07_here(self):\n        def helper():\n")
            self.assertEqual(conformance.python_names(path), ["test_RPC_07_here"])

    def test_python_files_of_shell_tests(self):
        xml = """<query><rule class="sh_test" name="//a:b"><list name="srcs">
            <label value="//a:run.sh"/></list><list name="data"><label value="//a:x_test.py"/>
            <label value="//a:helper.py"/></list></rule></query>"""
        self.assertEqual(conformance.python_files(xml), {"//a:b": ["a/x_test.py"]})


class ResultsTest(unittest.TestCase):
    def test_cases_of_gtest(self):
        self.assertEqual(conformance.read_results(XML),
                         {"WorkerTest.RPC_01_Starts": "passed", "WorkerTest.Fails": "failed"})

    def test_a_whole_program(self):
        xml = '<testsuites><testsuite><testcase name="a/b" status="run">%s</testcase>' \
              '</testsuite></testsuites>'
        self.assertEqual(conformance.read_results(xml % ""), {"": "passed"})
        self.assertEqual(conformance.read_results(xml % "<error/>"), {"": "failed"})

    def test_shards_and_missing_logs(self):
        with tempfile.TemporaryDirectory() as logs:
            folder = os.path.join(logs, "a/a_test/shard_1_of_2")
            os.makedirs(folder)
            with open(os.path.join(folder, "test.xml"), "w", encoding="utf-8") as file:
                file.write(XML)
            tests = [conformance.Test("//a:a_test", "WorkerTest.RPC_01_Starts"),
                     conformance.Test("//a:a_test", "WorkerTest.Fails"),
                     conformance.Test("//a:a_test", "WorkerTest.Off"),
                     conformance.Test("//b:b_test", "WorkerTest.RPC_01_Starts")]
            self.assertEqual(list(conformance.find_results(tests, logs).values()),
                             ["passed", "failed", "not run", "not run"])


class VerdictTest(unittest.TestCase):
    def setUp(self):
        self.rows = conformance.parse_rows(ROWS)

    def say(self, tests, results=None):
        shown = conformance.tests_by_row(self.rows, tests)
        states = {r.id: conformance.state_of(r, shown[r.id], results) for r in self.rows}
        return conformance.report(self.rows, shown, states), \
            conformance.problems(self.rows, shown, states)

    def test_all_is_well(self):
        lines, wrong = self.say(row_tests())
        self.assertEqual(wrong, [])
        self.assertEqual(lines[0], "RPC-01\tC\ttested\tWorkerTest.RPC_01_Starts")
        self.assertEqual(lines[1], "RPC-02\tN\topen\tLater.")
        self.assertEqual(lines[-1], "total: C 2/2 N 0/1 X 1")
        self.assertIn("OPT: C 1/1 N 0/0 X 0", lines)

    def test_a_lost_test(self):
        lines, wrong = self.say(row_tests()[1:])
        self.assertEqual(wrong, ["RPC-01: no test"])
        self.assertEqual(lines[-1], "total: C 1/2 N 0/1 X 1")

    def test_open_and_tested(self):
        _, wrong = self.say(row_tests() + [conformance.Test("//a:a_test", "RPC_02_Better")])
        self.assertIn("RPC-02 has a test", wrong[0])

    def test_results(self):
        results = dict.fromkeys(row_tests(), "passed")
        lines, wrong = self.say(row_tests(), results)
        self.assertEqual((wrong, lines[-1]), ([], "total: C 2/2 N 0/1 X 1"))
        results[row_tests()[0]] = "not run"
        lines, wrong = self.say(row_tests(), results)
        self.assertEqual((wrong, lines[-1]), (["RPC-01: not run"], "total: C 1/2 N 0/1 X 1"))
        results[row_tests()[0]] = "failed"
        self.assertEqual(self.say(row_tests(), results)[1], ["RPC-01: failed"])

    def test_a_row_that_there_is_not(self):
        with self.assertRaises(conformance.CannotSay):
            self.say([conformance.Test("//a:a_test", "RPC_99_What")])

    def test_the_page(self):
        shown = conformance.tests_by_row(self.rows, row_tests())
        states = {r.id: conformance.state_of(r, shown[r.id], None) for r in self.rows}
        page = conformance.page(self.rows, shown, states)
        self.assertIn("| RPC-01 | C | It starts. | `a/a_test` |", page)
        self.assertIn("| RPC-02 | N | It is better. | open: Later. |", page)
        self.assertIn("    total: C 2/2 N 0/1 X 1\n", page)


if __name__ == "__main__":
    unittest.main()
