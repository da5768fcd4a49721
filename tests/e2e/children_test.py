"""tools/launch/children.py: children end with their parent, however it ends."""
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, "tools/launch")
import children  # noqa: E402

SLEEP = ["/bin/sh", "-c", "echo started; exec sleep 600"]
# When told to stop, both programs send a signal to their parent. Only the first one then ends.
STOPS_SLOWLY = "trap 'kill -INT $PPID; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
NEVER_STOPS = STOPS_SLOWLY.replace("; exit 0", "")


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid):
    for _ in range(1000):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


def ignore(signals):
    for number in signals:
        signal.signal(number, signal.SIG_IGN)


class ChildrenTest(unittest.TestCase):

    def test_lines_arrive(self):
        with children.Group(children.StopRequest()) as group:
            child = group.start("a", ["/bin/sh", "-c", "echo one; echo two >&2"], may_end=True)
            lines = []
            while not group.drained([child]):
                item = group.next_line(0.1)
                if item:
                    lines.append(item)
            group.check()
        self.assertEqual(sorted(lines), [("a", "one"), ("a", "two")])

    def test_stop_ends_children_and_what_they_started(self):
        with children.Group(children.StopRequest()) as group:
            child = group.start("a", ["/bin/sh", "-c", "sleep 600 & echo $!; wait"])
            grandchild = int(group.next_line(10)[1])
            self.assertTrue(alive(grandchild))
        self.assertFalse(alive(child.process.pid))
        self.assertTrue(wait_until_gone(grandchild))

    def test_child_that_ignores_sigterm_is_killed(self):
        with children.Group(children.StopRequest(), stop_timeout_s=0.1) as group:
            child = group.start("a", ["/bin/sh", "-c", "trap '' TERM; echo ready; sleep 600"])
            group.next_line(10)
        self.assertEqual(child.process.returncode, -signal.SIGKILL)

    def test_failure_names_child_code_and_last_words(self):
        with children.Group(children.StopRequest()) as group:
            group.start("fine", SLEEP)
            bad = group.start("bad", ["/bin/sh", "-c", "echo disk on fire; exit 7"])
            bad.process.wait()
            with self.assertRaises(children.ChildFailed) as caught:
                group.check()
        self.assertIn("bad ended (exit code 7)", str(caught.exception))
        self.assertIn("bad: disk on fire", str(caught.exception))

    def test_ending_well_is_a_failure_too_unless_expected(self):
        with children.Group(children.StopRequest()) as group:
            group.start("a", ["/bin/true"], may_end=True).process.wait()
            group.check()
            group.start("b", ["/bin/true"]).process.wait()
            with self.assertRaises(children.ChildFailed):
                group.check()

    def test_missing_program(self):
        with children.Group(children.StopRequest()) as group:
            with self.assertRaises(children.ChildFailed):
                group.start("a", ["/no/such/program"])

    def run_parent(self, ignored=()):
        """Starts a process that has one child and ignores some signals from the beginning. Returns
        (process, child's pid)."""
        code = ("import sys, time; sys.path.insert(0, 'tools/launch'); import children\n"
                "try:\n"
                "    with children.StopRequest() as stop, children.Group(stop) as group:\n"
                "        child = group.start('a', %r)\n"
                "        group.next_line(10)\n"
                "        print(child.process.pid, flush=True)\n"
                "        while True:\n"
                "            group.next_line(0.1)\n"
                "except children.Stopped as stopped:\n"
                "    sys.exit(128 + stopped.signal_number)\n" % SLEEP)
        parent = subprocess.Popen(["/usr/bin/python3", "-B", "-c", code], stdout=subprocess.PIPE,
                                  text=True, preexec_fn=lambda: ignore(ignored))
        self.addCleanup(parent.stdout.close)
        return parent, int(parent.stdout.readline())

    def test_signals_stop_the_children(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            parent, child = self.run_parent()
            parent.send_signal(number)
            self.assertEqual(parent.wait(timeout=20), 128 + number)
            self.assertTrue(wait_until_gone(child))

    def test_sigint_stops_what_a_script_started_in_the_background(self):
        parent, child = self.run_parent(ignored=[signal.SIGINT])
        parent.send_signal(signal.SIGINT)
        self.assertEqual(parent.wait(timeout=20), 128 + signal.SIGINT)
        self.assertTrue(wait_until_gone(child))

    def test_nohup_is_respected(self):
        parent, child = self.run_parent(ignored=[signal.SIGHUP])
        parent.send_signal(signal.SIGHUP)
        parent.send_signal(signal.SIGTERM)
        self.assertEqual(parent.wait(timeout=20), 128 + signal.SIGTERM)
        self.assertTrue(wait_until_gone(child))

    def test_signals_count_after_one_group_has_ended(self):
        with children.StopRequest() as stop:
            with children.Group(stop) as group:
                group.start("first", ["/bin/true"], may_end=True).process.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            with self.assertRaises(children.Stopped):
                with children.Group(stop) as group:
                    child = group.start("second", SLEEP)
                    group.next_line(10)
            self.assertFalse(alive(child.process.pid))

    def test_signal_while_stopping_is_told_when_all_are_gone(self):
        with children.StopRequest() as stop, self.assertRaises(children.Stopped) as caught:
            with children.Group(stop) as group:
                child = group.start("a", ["/bin/sh", "-c", STOPS_SLOWLY])
                while group.next_line(10)[1] != "ready":
                    pass
        self.assertEqual(caught.exception.signal_number, signal.SIGINT)
        self.assertEqual(child.process.returncode, 0)

    def test_second_signal_kills(self):
        with children.StopRequest() as stop, self.assertRaises(children.Stopped):
            with children.Group(stop, stop_timeout_s=600) as group:
                child = group.start("a", ["/bin/sh", "-c", NEVER_STOPS])
                while group.next_line(10)[1] != "ready":
                    pass
                os.kill(os.getpid(), signal.SIGINT)
                group.check()
        self.assertEqual(child.process.returncode, -signal.SIGKILL)

    def test_killed_parent_takes_its_children_along(self):
        parent, child = self.run_parent()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        self.assertTrue(wait_until_gone(child))


if __name__ == "__main__":
    unittest.main()
