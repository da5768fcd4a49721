"""psctl run: the ranks of a job, their output, their ends, and that nothing is left running."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, "tests/server")
from psd_process import Psd  # noqa: E402

PSCTL = os.path.abspath("tools/cli/psctl")
RANK = os.path.abspath("tests/tools/meeting_rank")
# With an owner psctl starts no registrar. Ranks that are no workers never dial it.
NOBODY = ("--owner", "owner0=127.0.0.1:1")


def environment(**more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PSD_")}
    clean["PATH"] = os.path.abspath("server/daemon") + ":" + clean["PATH"]
    return dict(clean, **more)


def start(*arguments, **options):
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("env", environment())
    return subprocess.Popen([PSCTL, "run", *arguments], stdin=subprocess.DEVNULL, text=True,
                            **options)


def run(*arguments, **options):
    """Runs psctl run to its end. Returns (exit code, standard output, standard error)."""
    process = start(*arguments, **options)
    output, errors = process.communicate(timeout=100)
    return process.returncode, output, errors


def shell(script):
    return ["--", "sh", "-c", script]


def python(script):
    return ["--", sys.executable, "-c", script]


def runs(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


def registrar_of(psctl):
    """Returns the process id of the registrar that `psctl` started."""
    for child in children(psctl.pid):
        with open("/proc/%d/cmdline" % child, "rb") as file:
            if b"--registrar_only" in file.read():
                return child
    return None


class PsctlRunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def pids(self, count):
        """Waits until `count` processes have appended their ids to the file "pids"."""
        def read():
            try:
                with open(self.path("pids"), encoding="utf-8") as file:
                    return [int(line) for line in file if line.endswith("\n")]
            except FileNotFoundError:
                return []
        until(lambda: len(read()) == count)
        return read()

    def write_pid(self):
        return "echo $$ >>%s; " % self.path("pids")

    # ---- start

    def test_ranks_meet_through_a_registrar_of_their_own(self):
        code, output, errors = run("-n", "3", "--", RANK)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(sorted(output.splitlines()),
                         ["[%d] rank%d: rank %d, place %d of 3" % (i, i, i, i) for i in range(3)])

    def test_ranks_meet_at_an_owner(self):
        with Psd() as psd:
            code, output, errors = run("-n=2", "--owner=owner0=" + psd.address, "--name", "t", RANK)
        self.assertEqual((code, errors), (0, ""))
        places = sorted(re.sub("rank [12]", "rank", line) for line in output.splitlines())
        self.assertEqual(places, ["[0] t0: rank, place 0 of 2", "[1] t1: rank, place 1 of 2"])

    def test_the_environment_of_a_rank(self):
        show = "echo $PSD_NAME $PSD_RANK $PSD_GROUP_SIZE $PSD_OWNERS ${PSD_REGISTRAR-none}"
        outer = environment(PSD_REGISTRAR="of=another:1", PSD_RANK="99")
        code, output, _ = run("-n", "2", *NOBODY, "--owner", "b=h:2", *shell(show), env=outer)
        self.assertEqual(code, 0)
        self.assertEqual(sorted(output.splitlines()),
                         ["[%d] rank%d %d 2 owner0=127.0.0.1:1,b=h:2 none" % (i, i, i)
                          for i in range(2)])
        outer["PSD_OWNERS"] = "of=another:1"
        code, output, _ = run(*shell("echo ${PSD_OWNERS-none} $PSD_REGISTRAR"), env=outer)
        self.assertEqual(code, 0)
        self.assertRegex(output, r"^\[0\] none registrar=127\.0\.0\.1:\d+\n$")

    def test_arguments_of_the_program_are_its_own(self):
        for arguments in (["--", "echo", "--json", "--", "-n", "5"],
                          ["echo", "--json", "--", "-n", "5"]):
            code, output, _ = run(*NOBODY, *arguments)
            self.assertEqual((code, output), (0, "[0] --json -- -n 5\n"))

    def test_a_program_that_cannot_be_started(self):
        code, output, errors = run("-n", "2", *NOBODY, "--", "/nowhere/trainer")
        self.assertEqual((code, output), (127, ""))
        self.assertEqual(errors, "psctl: rank 0: cannot start /nowhere/trainer: "
                                 "No such file or directory\n")
        with open(self.path("text"), "w", encoding="utf-8"):
            pass
        code, _, errors = run("--", self.path("text"))
        self.assertEqual(code, 126)
        self.assertIn("Permission denied", errors)

    def test_without_a_daemon_there_is_no_registrar(self):
        code, _, errors = run("true", env=environment(PATH="/usr/bin:/bin"))
        self.assertNotEqual(code, 0)
        self.assertIn("the registrar: cannot start psd", errors)
        self.assertIn("--owner", errors)

    def test_usage(self):
        for arguments in ([], ["-n", "2"], ["-n", "0", "true"], ["-n", "257", "true"],
                          ["-n", "two", "true"], ["-n2", "true"], ["-n", "-1", "true"], ["--restarts", "-1", "true"],
                          ["--restarts", "1.5", "true"], ["--grace", "soon", "true"],
                          ["--grace", "-1s", "true"], ["--owner", "owner0", "true"],
                          ["--owner", "o=h", "true"], ["--owner", "o=h:0", "true"],
                          ["--owner", "a b=h:1", "true"], ["--name", "a b", "true"],
                          [*NOBODY, *NOBODY, "true"], ["--map", "a=b", "true"],
                          ["--frobnicate", "true"]):
            code, output, errors = run(*arguments)
            self.assertEqual((code, output), (2, ""), arguments)
            self.assertTrue(errors.startswith("psctl: "), errors)

    # ---- output

    def test_lines_are_whole_and_in_order_and_streams_apart(self):
        script = ("import sys, os\n"
                  "for i in range(5000):\n"
                  "    text = '%d:%s\\n' % (i, 'x' * (i % 300))\n"
                  "    sys.stdout.write(text); sys.stderr.write('e' + text)\n"
                  "sys.stdout.write('last'); sys.stderr.write('elast')\n")
        lines = ["%d:%s" % (i, "x" * (i % 300)) for i in range(5000)] + ["last"]
        code, output, errors = run("-n", "3", *NOBODY, *python(script))
        self.assertEqual(code, 0)
        for text, mark in ((output, ""), (errors, "e")):
            self.assertTrue(text.endswith("\n"))
            of_rank = {rank: [] for rank in range(3)}
            for line in text.splitlines():
                rank, rest = re.fullmatch(r"\[(\d)\] (.*)", line).groups()
                of_rank[int(rank)].append(rest)
            for rank in range(3):
                self.assertEqual(of_rank[rank], [mark + line for line in lines])

    def test_lines_stay_whole_when_both_streams_are_one_pipe(self):
        script = ("import os\n"
                  "for i in range(2000):\n"
                  "    os.write(1 + i % 2, b'<' + b'x' * 3000 + b'>\\n')\n")
        code, output, _ = run("-n", "2", *NOBODY, *python(script), stderr=subprocess.STDOUT)
        self.assertEqual(code, 0)
        lines = output.splitlines()
        self.assertEqual(len(lines), 4000)
        for line in lines:
            self.assertRegex(line, r"^\[[01]\] <x{3000}>$")

    def test_a_rank_that_writes_much_stops_nobody_else(self):
        script = ("import os\n"
                  "if os.environ['PSD_RANK'] == '0':\n"
                  "    os.write(2, b'begin\\n')\n"
                  "    for i in range(2000): os.write(1, b'y' * 5000)\n"
                  "else:\n"
                  "    os.write(2, b'through\\n')\n")
        psctl = start("-n", "2", *NOBODY, *python(script))
        # Standard output is not read yet, so rank 0 cannot go on.
        said = {psctl.stderr.readline(), psctl.stderr.readline()}
        self.assertEqual(said, {"[0] begin\n", "[1] through\n"})
        output, errors = psctl.communicate(timeout=100)
        self.assertEqual((psctl.returncode, errors), (0, ""))
        self.assertEqual(sum(line.count("y") for line in output.splitlines()), 2000 * 5000)

    def test_a_job_goes_on_when_nobody_reads_any_more(self):
        psctl = start(*NOBODY, *shell("for i in 1 2 3; do seq 10000; done; echo end >&2"))
        psctl.stdout.readline()
        psctl.stdout.close()
        self.assertEqual(psctl.stderr.read(), "[0] end\n")
        self.assertEqual(psctl.wait(60), 0)
        psctl.stderr.close()

    # ---- ends

    def test_a_rank_that_dies_takes_the_others_down(self):
        script = (self.write_pid() + "test $PSD_RANK = 1 || exec sleep 1000; "
                  "until test $(wc -l <%s) = 4; do :; done; exit 7" % self.path("pids"))
        code, output, errors = run("-n", "4", *NOBODY, *shell(script))
        self.assertEqual((code, output), (7, ""))
        self.assertRegex(errors.splitlines()[-1], r"^psctl: rank 1 \(pid \d+\) exited with code 7$")
        self.assertFalse([pid for pid in self.pids(4) if runs(pid)])

    def test_the_last_line_names_the_signal(self):
        code, _, errors = run("-n", "2", *NOBODY,
                              *shell("test $PSD_RANK = 0 || exec sleep 1000; kill -SEGV $$"))
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertRegex(errors.splitlines()[-1],
                         r"^psctl: rank 0 \(pid \d+\) was killed by SIGSEGV$")

    def test_a_rank_that_ends_because_another_was_killed_is_not_named(self):
        psctl = start("-n", "2", *NOBODY, *shell(
            "echo $$ >%s.$PSD_RANK; until test -e %s; do sleep 0.01; done; exit 3"
            % (self.path("pid"), self.path("lost"))))

        def pid(rank):
            path = self.path("pid.%d" % rank)
            until(lambda: os.path.exists(path) and os.path.getsize(path))
            with open(path, encoding="utf-8") as file:
                return int(file.read())
        other, killed = pid(0), pid(1)
        os.kill(psctl.pid, signal.SIGSTOP)  # it finds both ends at the same time
        os.kill(killed, signal.SIGKILL)
        until(lambda: not runs(killed))
        open(self.path("lost"), "w", encoding="utf-8").close()
        until(lambda: not runs(other))
        os.kill(psctl.pid, signal.SIGCONT)
        _, errors = psctl.communicate(timeout=100)
        self.assertEqual(psctl.returncode, 128 + signal.SIGKILL)
        self.assertEqual(errors.splitlines()[-1],
                         "psctl: rank 1 (pid %d) was killed by SIGKILL" % killed)

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        script = ("trap '' TERM; " + self.write_pid() + "echo ready; "
                  "while test $PSD_RANK = 0; do sleep 0.05; done; "
                  "while test $(wc -l <%s) != 2; do :; done; exit 9" % self.path("pids"))
        code, _, errors = run("-n", "2", "--grace", "300ms", *NOBODY, *shell(script))
        self.assertEqual(code, 9)
        self.assertRegex(errors, r"psctl: rank 0 \(pid \d+\) has not stopped in time; killed\n")
        self.assertFalse([pid for pid in self.pids(2) if runs(pid)])

    def test_what_a_rank_leaves_behind_ends_with_it(self):
        code, _, _ = run(*NOBODY, *shell("sleep 1000 & echo $! >>" + self.path("pids")))
        self.assertEqual(code, 0)
        # psctl kills it but is not its parent, and does not see when it is gone.
        until(lambda: not runs(self.pids(1)[0]))

    def test_a_job_does_not_wait_for_what_has_left_it(self):
        script = "setsid sh -c 'echo $$ >>%s; exec yes' & until test -e %s; do :; done; echo end >&2"
        try:
            code, _, errors = run(*NOBODY, *shell(script % ((self.path("pids"),) * 2)),
                                  stdout=subprocess.DEVNULL)
            self.assertEqual((code, errors), (0, "[0] end\n"))
        finally:
            # It has probably died already, because nobody reads its pipe any more.
            if runs(self.pids(1)[0]):
                os.kill(self.pids(1)[0], signal.SIGKILL)

    def test_a_rank_that_dies_is_started_again(self):
        script = ("echo x >>%s; test $(wc -l <%s) -ge 3 || exit 5; echo well"
                  % ((self.path("tries"),) * 2))
        code, output, errors = run("--restarts=2", *NOBODY, *shell(script))
        self.assertEqual((code, output), (0, "[0] well\n"))
        for restart, line in enumerate(errors.splitlines(), 1):
            self.assertRegex(line, r"^psctl: rank 0 \(pid \d+\) exited with code 5; restart %d of 2$"
                             % restart)
        os.remove(self.path("tries"))
        code, _, errors = run("--restarts", "1", *NOBODY, *shell(script))
        self.assertEqual(code, 5)
        self.assertRegex(errors.splitlines()[-1], r"exited with code 5 after 1 restarts$")

    def test_a_rank_that_was_started_again_meets_the_others(self):
        once = self.path("once")
        script = "test $PSD_RANK != 1 || test -e %s || { : >%s; kill -9 $$; }; exec %s" % (
            once, once, RANK)
        code, output, errors = run("-n", "3", "--restarts", "1", *shell(script))
        self.assertEqual(code, 0, errors)
        self.assertEqual(sorted(output.splitlines()),
                         ["[%d] rank%d: rank %d, place %d of 3" % (i, i, i, i) for i in range(3)])

    def test_without_its_registrar_the_job_ends(self):
        psctl = start("-n", "2", *shell(self.write_pid() + "exec sleep 1000"))
        pids = self.pids(2)
        os.kill(registrar_of(psctl), signal.SIGKILL)
        _, errors = psctl.communicate(timeout=100)
        self.assertEqual(psctl.returncode, 1)
        self.assertRegex(errors.splitlines()[-1],
                         r"^psctl: the registrar \(pid \d+\) was killed by SIGKILL$")
        self.assertFalse([pid for pid in pids if runs(pid)])

    # ---- signals

    def test_signals_are_passed_on(self):
        script = (self.write_pid() + "for s in INT TERM HUP; do trap \"echo got $s; exit 4\" $s; "
                  "done; echo ready; while :; do sleep 0.05; done")
        for number, name in ((signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"),
                             (signal.SIGHUP, "HUP")):
            psctl = start("-n", "2", *shell(script))
            for _ in range(2):
                self.assertIn("ready", psctl.stdout.readline())
            registrar = registrar_of(psctl)
            psctl.send_signal(number)
            output, errors = psctl.communicate(timeout=100)
            self.assertEqual(psctl.returncode, 128 + number)
            self.assertEqual(sorted(output.splitlines()), ["[%d] got %s" % (i, name)
                                                           for i in range(2)])
            self.assertEqual(errors.splitlines()[-1], "psctl: stopped by SIG" + name)
            self.assertFalse([pid for pid in self.pids(2) + [registrar] if runs(pid)])
            os.remove(self.path("pids"))

    def test_a_second_signal_kills(self):
        psctl = start("--grace", "24h", *NOBODY,
                      *shell(self.write_pid() + "trap '' INT; echo ready; "
                             "while :; do sleep 0.05; done"))
        self.assertIn("ready", psctl.stdout.readline())
        psctl.send_signal(signal.SIGINT)
        self.assertIn("stopping", psctl.stderr.readline())
        psctl.send_signal(signal.SIGINT)
        psctl.communicate(timeout=100)
        self.assertEqual(psctl.returncode, 128 + signal.SIGINT)
        self.assertFalse([pid for pid in self.pids(1) if runs(pid)])

    def test_an_ignored_hangup_stays_ignored(self):
        psctl = start(*NOBODY, *shell("echo ready; read x <%s; echo end" % self.path("gate")),
                      preexec_fn=lambda: (os.mkfifo(self.path("gate")),
                                          signal.signal(signal.SIGHUP, signal.SIG_IGN)))
        self.assertIn("ready", psctl.stdout.readline())
        psctl.send_signal(signal.SIGHUP)
        with open(self.path("gate"), "w", encoding="utf-8") as gate:
            gate.write("go\n")
        self.assertEqual(psctl.communicate(timeout=100)[0], "[0] end\n")
        self.assertEqual(psctl.returncode, 0)

    def test_nothing_outlives_a_killed_psctl(self):
        script = (self.write_pid() + "sleep 1000 & echo $! >>%s; echo ready; wait"
                  % self.path("pids"))
        psctl = start("-n", "2", *shell(script))
        for _ in range(2):
            self.assertIn("ready", psctl.stdout.readline())
        pids = self.pids(4) + children(psctl.pid)
        self.assertTrue(all(runs(pid) for pid in pids))
        psctl.kill()
        psctl.communicate(timeout=100)
        until(lambda: not any(runs(pid) for pid in pids))


if __name__ == "__main__":
    unittest.main()
