"""tools/launch/progress.py, and the last line of the demo."""
import io
import sys
import unittest

sys.path.insert(0, "tools/launch")
import demo  # noqa: E402
import progress  # noqa: E402

REPORT = ("progress epoch=2 epochs=4 step=312 steps=936 loss=0.4 images_per_s=15230 left_s=12.3")
OTHER = ("progress epoch=1 epochs=4 step=100 steps=936 loss=0.6 images_per_s=14770 left_s=14.0")


class Clock:

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):

    def isatty(self):
        return True


class ProgressTest(unittest.TestCase):

    def test_reports_add_up(self):
        reports = [progress.parse_report(REPORT), progress.parse_report(OTHER)]
        self.assertEqual(progress.combine(reports),
                         "epoch 1/4  step 412/1872  loss 0.5000  30000 images/s  14 s left")

    def test_other_lines_are_no_reports(self):
        for line in ("", "hello", "progress", "progress epoch=1", "progress x", REPORT[1:],
                     REPORT.replace("0.4", "much")):
            self.assertIsNone(progress.parse_report(line), line)

    def test_plain_lines_not_too_often(self):
        out, clock = io.StringIO(), Clock()
        line = progress.ProgressLine(out, clock)
        line.show("a")
        line.show("b")
        clock.now += 2.5
        line.show("c")
        line.show("d", now=True)
        line.end()
        self.assertEqual(out.getvalue(), "a\nc\nd\n")

    def test_terminal_line_is_rewritten_and_ended_once(self):
        out = Terminal()
        line = progress.ProgressLine(out, Clock())
        line.show("a")
        line.show("b", now=True)
        line.end()
        line.end()
        self.assertEqual(out.getvalue(), "\ra\x1b[K\rb\x1b[K\n")

    def test_result_line(self):
        self.assertEqual(demo.format_result(demo.Result(0.88121, 10000, 41.23, 30210.7, "images")),
                         "result: accuracy=0.8812 train_s=41.2 images_per_s=30211")


if __name__ == "__main__":
    unittest.main()
