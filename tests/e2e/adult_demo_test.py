"""All programs of the wide and deep example, on a small file in the format of UCI Adult."""
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/launch")
import children  # noqa: E402
import demo  # noqa: E402
import progress  # noqa: E402

PSD = "server/daemon/psd"
TRAIN = "examples/wide_deep_adult/train"
EVALUATE = "examples/wide_deep_adult/evaluate"
JOBS = ("Sales", "Craft-repair", "Exec-managerial", "?")


def write_people(path, count):
    """Writes people. Managers over 40 and people with gains are rich. Some lines have blanks and
    CRLF ends."""
    chance = random.Random(3)
    with open(path, "w", encoding="ascii", newline="") as file:
        for i in range(count):
            age = chance.randrange(17, 90)
            job = chance.choice(JOBS)
            gain = chance.choice((0, 0, 0, 5000))
            rich = (age > 40 and job == "Exec-managerial") or gain > 0
            columns = (age, "Private", 77516, "Bachelors", 13, "Never-married", job,
                       "Not-in-family", "White", "Male", gain, 0, 40, "United-States",
                       ">50K" if rich else "<=50K")
            file.write((", " if i % 2 else ",").join(map(str, columns)))
            file.write("\r\n" if i % 3 else "\n")
        file.write("\n")


class AdultDemoTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.data = os.path.join(folder.name, "adult.data")
        write_people(self.data, 3000)

    def test_two_owners_and_two_trainers_learn(self):
        result = demo.run(
            demo.Plan(psd=PSD, train=TRAIN, evaluate=EVALUATE, data=self.data, epochs=8,
                      seconds=0, unit="rows"), progress.ProgressLine(), children.StopRequest())
        self.assertGreater(result.accuracy, 0.95)
        self.assertEqual(result.tested, 600)
        self.assertRegex(demo.format_result(result), "rows_per_s=[1-9]")

    def test_bad_files_are_named(self):
        with open(self.data, "a", encoding="ascii") as file:
            file.write("39, State-gov, 77516")
        for path, said in ((self.data, "line 3002: 3 columns instead of 15"),
                           ("/nowhere/adult.data", "/nowhere/adult.data cannot be read")):
            result = subprocess.run([TRAIN, "--data=" + path], capture_output=True, text=True,
                                    check=False, timeout=20)
            self.assertEqual(result.returncode, 1)
            self.assertIn(said, result.stderr)


if __name__ == "__main__":
    unittest.main()
