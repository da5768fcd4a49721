"""tools/launch/build.py and run_tests.py, which interpret Bazel's output."""
import io
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/launch")
import build  # noqa: E402
import children  # noqa: E402
import progress  # noqa: E402

PASSED_EVENTS = ('{"id":{"targetConfigured":{"label":"//a:b"}},"configured":{"testSize":"SMALL"}}\n'
                 '{"id":{"testSummary":{"label":"//a:b"}},"testSummary":{"overallStatus":"PASSED"}}')


class Clock:

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class BuildProgressTest(unittest.TestCase):

    def setUp(self):
        self.clock = Clock()
        self.state = build.BuildProgress("building psd", self.clock, cores=2)

    def take(self, *lines):
        for line in lines:
            self.state.take(line)

    def test_before_the_first_step(self):
        self.clock.now += 65
        self.take("Analyzing: 3 targets (2 packages loaded)", "INFO: Found 3 targets...")
        self.assertEqual(self.state.text(),
                         "building psd: 1:05 elapsed, looking at what is to be done")

    def test_steps_and_the_longest_of_several_actions(self):
        self.take("[1,016 / 2,241] 2 actions running", "    Compiling core/a.cc; 4s linux-sandbox",
                  "    [Prepa] Linking b; 1s")
        self.clock.now += 5
        self.assertRegex(self.state.text(), r"1016 of 2241 steps, .* left; Compiling core/a\.cc$")
        self.take("[1,017 / 2,241] Compiling core/b.cc; 2s")
        self.assertRegex(self.state.text(), r"1017 of 2241 steps, .* left; Compiling core/b\.cc$")
        self.take("[1,018 / 2,241] checking cached actions")
        self.assertRegex(self.state.text(), r" left$")

    def test_no_estimate_while_bazel_still_finds_steps(self):
        self.take("[6 / 10] 1 action")
        self.clock.now += 2
        self.take("[7 / 241] 1 action")
        self.clock.now += build.SETTLED_S - 0.1
        self.assertRegex(self.state.text(), "7 of 241 steps$")
        self.clock.now += 0.2
        self.assertRegex(self.state.text(), "7 of 241 steps, about .* left$")

    def test_elapsed_time_moves_without_a_word_from_bazel(self):
        self.take("[1 / 20] Compiling a.cc; 1s")
        first = self.state.text()
        self.clock.now += 5
        self.assertNotEqual(self.state.text(), first)
        self.assertIn("0:05 elapsed", self.state.text())

    def test_the_estimate_follows_the_observed_rate(self):
        self.take("[0 / 1,000] 1 action")
        self.assertEqual(self.state.left_s(), 1000 * build.STEP_CORE_S / 2)
        for i in range(1, 101):  # a step takes ten seconds
            self.clock.now += 10
            self.take("[%d / 1,000] 1 action" % i)
        # Steps before the window are forgotten, and the trusted figure weighs less than the
        # observed steps.
        seen = build.RATE_WINDOW_S / 10
        rate = ((10 * seen + build.TRUSTED_STEPS * build.STEP_CORE_S / 2) /
                (seen + build.TRUSTED_STEPS))
        self.assertAlmostEqual(self.state.left_s(), 900 * rate, delta=900 * rate / 10)
        self.take("[1,000 / 1,000] 1 action")
        self.assertEqual(self.state.left_s(), 0)

    def test_what_is_progress_and_what_is_news(self):
        for line in ("[1 / 2] 2 actions running", "    Compiling a.cc; 3s linux-sandbox",
                     "    Testing //a:b; 10s",
                     "    Compiling a.cc; 3s remote-cache, linux-sandbox",
                     "Loading: 0 packages loaded",
                     "Analyzing: 3 targets (2 packages loaded)", "[5 / 9] 1 / 3 tests; checking"):
            self.assertTrue(build.is_progress(line), line)
        for line in ("ERROR: x.cc failed", "//a:b   PASSED in 0.1s", "", "    int x = 3;",
                     "Executed 1 out of 1 test: 1 test passes.", "[ RUN      ] A.B"):
            self.assertFalse(build.is_progress(line), line)


class WithFakeBazel(unittest.TestCase):
    """A stand-in for `bazel` is first in PATH."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.environ["PATH"]
        os.environ["PATH"] = self.folder + ":" + self.path
        self.addCleanup(os.environ.__setitem__, "PATH", self.path)

    def fake_bazel(self, script):
        path = os.path.join(self.folder, "bazel")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + script)
        os.chmod(path, 0o755)

    def test_a_silent_build_has_a_line_every_five_seconds(self):
        go_on = os.path.join(self.folder, "go_on")
        self.fake_bazel("echo '[1 / 9] Compiling big.cc; 1s'\n"
                        "until [ -e %s ]; do sleep 0.05; done\n" % go_on)
        clock, out, folder = Clock(), io.StringIO(), os.getcwd()
        self.addCleanup(os.chdir, folder)
        line = progress.ProgressLine(out, clock, plain_interval_s=5.0)
        state = build.BuildProgress("building", clock, cores=1)

        def wait():
            line.show(state.text())
            clock.now += 1
            if clock.now > 131:
                with open(go_on, "w", encoding="utf-8"):
                    pass

        child = build.run(["build"], children.StopRequest(), state.take, wait)
        self.assertEqual(child.process.returncode, 0)
        shown = [text.split(",")[0] for text in out.getvalue().splitlines()]
        self.assertEqual(shown[:6], ["building: 0:%02d elapsed" % (5 * i) for i in range(6)])

    def test_failure_keeps_errors_and_not_progress(self):
        self.fake_bazel("echo 'ERROR: a.cc is wrong'\n"
                        "for i in $(seq 50); do\n"
                        "  printf '\\r\\r[%d / 99] Compiling b.cc; 1s\\n' $i; done\n"
                        "exit 1\n")
        self.addCleanup(os.chdir, os.getcwd())
        child = build.run(["build"], children.StopRequest(), lambda line: None)
        self.assertEqual(list(child.last_lines), ["ERROR: a.cc is wrong"])

    def run_tests(self):
        return subprocess.run(
            ["/usr/bin/python3", "-B", "tools/launch/run_tests.py", "--flag", "//a:b"],
            capture_output=True, text=True, check=False)

    def test_tests_end_with_bazels_lines_and_the_totals(self):
        self.fake_bazel("for a in \"$@\"; do case $a in --build_event_json_file=*)\n"
                        "  echo '%s' >\"${a#*=}\";; esac; done\n"
                        "echo '[1 / 2] Compiling a.cc; 1s'; echo \"got $*\"; echo\n"
                        "echo 'INFO: done'; echo '[2 / 2] 1 / 1 tests'; echo 'INFO: done'; echo\n"
                        "echo 'Executed 1 out of 1 test: 1 test passes.'\n" % PASSED_EVENTS)
        result = self.run_tests()
        self.assertEqual(result.returncode, 0)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[-3:], ["", "Executed 1 out of 1 test: 1 test passes.",
                                      "1 passed, 0 failed"])
        self.assertEqual(lines.count("INFO: done"), 1)
        self.assertRegex(result.stdout, "got test .* --flag //a:b\n")

    def test_failing_tests_give_bazels_exit_code(self):
        self.fake_bazel("echo 'ERROR: no such target'; exit 7\n")
        result = self.run_tests()
        self.assertEqual(result.returncode, 7)
        lines = result.stdout.splitlines()
        self.assertIn("ERROR: no such target", lines)
        self.assertEqual(lines[-1], "0 passed, 0 failed")


if __name__ == "__main__":
    unittest.main()
