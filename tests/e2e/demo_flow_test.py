"""tools/launch/demo.py with stand-ins for the programs: the order of its steps, its failures."""
import contextlib
import io
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/launch")
import children  # noqa: E402
import demo  # noqa: E402
import progress  # noqa: E402

# An owner that writes its address to the given file and then waits.
OWNER = """
for a in "$@"; do case $a in --address_file=*) echo 127.0.0.1:1 > "${a#*=}.new"
  mv "${a#*=}.new" "${a#*=}";; esac; done
exec sleep 600
"""
TRAIN = """
echo 'progress epoch=1 epochs=1 step=5 steps=5 loss=0.5 images_per_s=100 left_s=0.0'
echo 'trained: seconds=2.00 images=300'
"""
EVALUATE = "echo 'accuracy=0.7500 images=20'\n"
FAILING = "echo 'all is well'; echo 'cannot reach owner1' >&2; exit 3\n"


class DemoFlowTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = io.StringIO()

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def plan(self, owner=OWNER, train=TRAIN, evaluate=EVALUATE):
        return demo.Plan(psd=self.program("psd", owner), train=self.program("train", train),
                         evaluate=self.program("evaluate", evaluate), data="nowhere", epochs=1,
                         seconds=0)

    def run_demo(self, plan):
        return demo.run(plan, progress.ProgressLine(self.out), children.StopRequest())

    def test_result_adds_trainers_up(self):
        result = self.run_demo(self.plan())
        self.assertEqual(demo.format_result(result),
                         "result: accuracy=0.7500 train_s=2.0 images_per_s=300")
        self.assertIn("step 10/10", self.out.getvalue())

    def test_failing_trainer_is_named_with_code_and_last_words(self):
        with self.assertRaises(children.ChildFailed) as caught:
            self.run_demo(self.plan(train=FAILING))
        self.assertRegex(str(caught.exception), r"trainer[01] ended \(exit code 3\)")
        self.assertIn("cannot reach owner1", str(caught.exception))

    def test_dying_owner_is_named(self):
        owner = OWNER.replace("exec sleep 600", "sleep 0.2; kill -9 $$")
        with self.assertRaises(children.ChildFailed) as caught:
            self.run_demo(self.plan(owner=owner, train="exec sleep 600\n"))
        self.assertRegex(str(caught.exception), r"owner[01] ended \(signal SIGKILL\)")

    def test_owner_that_cannot_start(self):
        with self.assertRaises(children.ChildFailed) as caught:
            self.run_demo(self.plan(owner="echo 'port in use'; exit 4\n"))
        self.assertIn("owner0 ended (exit code 4)\n  owner0: port in use", str(caught.exception))

    def test_trainer_that_ends_without_a_word(self):
        with self.assertRaises(children.ChildFailed):
            self.run_demo(self.plan(train="exit 0\n"))

    def test_failing_evaluation(self):
        with self.assertRaises(children.ChildFailed) as caught:
            self.run_demo(self.plan(evaluate=FAILING))
        self.assertIn("evaluate ended (exit code 3)", str(caught.exception))

    def test_launcher_refuses_unknown_flags(self):
        for arguments, said in ((["--dataset", "/tmp"], "unrecognized arguments: --dataset"),
                                (["--data", "mnist"], "invalid choice: 'mnist'"),
                                (["--data", "adult"], "needs --file PATH")):
            result = subprocess.run(
                ["/usr/bin/python3", "-B", "tools/launch/demo.py", *arguments],
                capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)
            self.assertIn(said, result.stderr)

    def test_first_command_knows_the_flags_of_the_launcher(self):
        refused = subprocess.run(["sh", "tools/demo", "--nonsense"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 2)
        help_text = subprocess.run(["/usr/bin/python3", "-B", "tools/launch/demo.py", "--help"],
                                   capture_output=True, text=True, check=True).stdout
        flags = set(re.findall(r"--\w+", help_text))
        self.assertEqual(set(re.findall(r"--\w+", refused.stderr)) - {"--nonsense"}, flags)
        for flag in sorted(flags - {"--help"}):
            # The flag is read before the unknown one, which is refused.
            value = [] if flag in ("--quick", "--no_shared_memory") else ["x"]
            refused = subprocess.run(["sh", "tools/demo", flag, *value, "--nonsense"],
                                     capture_output=True, text=True, check=False)
            self.assertIn("unknown argument '--nonsense'", refused.stderr)

    def test_owners_get_the_device_and_the_choice_of_shared_memory(self):
        said = os.path.join(self.folder, "said")
        owner = "echo \"$@\" >> %s\n%s" % (said, OWNER)
        self.run_demo(self.plan(owner=owner))
        self.run_demo(self.plan(owner=owner)._replace(device="emu:0", shared_memory=False))
        with open(said, encoding="utf-8") as file:
            plain, plain_too, told, told_too = file.read().splitlines()
        for line in (plain, plain_too):
            self.assertNotIn("--devices", line)
            self.assertNotIn("--shared_memory", line)
        for line in (told, told_too):
            self.assertIn("--devices=emu:0", line)
            self.assertIn("--shared_memory=false", line)

    def test_missing_data_is_named_before_anything_is_built(self):
        with self.assertRaises(children.ChildFailed) as caught:
            demo.find_data("adult", os.path.join(self.folder, "adult.data"))
        self.assertIn("adult.data does not exist; it should be UCI's", str(caught.exception))

    def test_rows_are_counted_as_rows(self):
        plan = self.plan(train=TRAIN.replace("images", "rows"),
                         evaluate=EVALUATE.replace("images", "rows"))
        result = self.run_demo(plan._replace(unit="rows"))
        self.assertEqual(demo.format_result(result),
                         "result: accuracy=0.7500 train_s=2.0 rows_per_s=300")
        self.assertIn("200 rows/s", self.out.getvalue())

    def test_signals_and_failures_give_exit_codes(self):
        line = progress.ProgressLine(self.out)
        self.assertEqual(demo.guarded(lambda stop: None, line), 0)

        def told_to_stop(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            stop.check()

        def fail(_stop):
            raise children.ChildFailed("x")

        self.assertEqual(demo.guarded(told_to_stop, line), 143)
        self.assertEqual(demo.guarded(fail, line), 1)

    def test_three_commands_to_try_stand_before_the_result(self):
        with contextlib.redirect_stdout(self.out):
            demo.print_result(demo.Result(0.5, 20, 1, 2, "images"))
        lines = self.out.getvalue().splitlines()
        self.assertRegex(lines[-1], "^result: ")
        self.assertIn("try next", lines[-5])
        for line in lines[-4:-1]:
            self.assertRegex(line, r"^  (bazel run -c opt //|tools/psctl )\S+.* # ")


if __name__ == "__main__":
    unittest.main()
