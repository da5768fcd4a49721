"""tools/demo as a whole, stopped by a signal in each of its phases.

`apt-get` and `bazel` are stand-ins found through PATH, so that nothing is installed or built. The
script and the launcher are the real ones, and so are the programs in the phase of training.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, "tests/e2e")
sys.path.insert(0, "tools/launch")
import demo_test  # noqa: E402

WAIT_S = 120.0
# Every process of a demo has this environment variable, with a value that is unique to the demo.
MARK = "PSD_STOP_DEMO_TEST"

NOTHING_INSTALLED = "exit 1\n"
ALL_INSTALLED = ("for package in \"$@\"; do case $package in -*) ;;\n"
                 "  *) echo \"$package installed\";; esac; done\n")
# A stand-in for apt-get, which leaves no child behind when it ends.
INSTALLING = "echo packages >>\"$PSD_PHASES\"; exec sleep 600\n"
# Notes its phase and waits. It has a child.
HANGING = "sleep 600 & echo \"{0}\" >>\"$PSD_PHASES\"; wait\n"
BAZEL = """
case $1 in
  build) echo '[16 / 241] 2 actions running'; echo '    Compiling a.cc; 1s linux-sandbox'
    {build} ;;
  info) echo "{programs}" ;;
esac
"""
# Owners that hang in one phase. The second one writes its address to the given file.
STARTING = HANGING.format("starting")
STOPPING = """
for a in "$@"; do case $a in --address_file=*) echo 127.0.0.1:1 >"${a#*=}.new"
  mv "${a#*=}.new" "${a#*=}";; esac; done
trap 'echo stopping >>"$PSD_PHASES"
  until [ -e "$PSD_PHASES.go_on" ]; do sleep 0.05; done; exit 0' TERM
while :; do sleep 0.05; done
"""
TRAIN = """
echo 'progress epoch=1 epochs=1 step=5 steps=5 loss=0.5 images_per_s=100 left_s=0.0'
echo 'trained: seconds=2.00 images=300'
"""
# Runs a real program from below the folder where the demo runs. If a flag is given several times,
# the last value counts.
RUN_REAL = "exec %s \"$@\"\n"
TRAIN_FOR_LONG = "exec %s \"$@\" --epochs=1000000\n"
EVALUATE = "echo 'accuracy=0.7500 images=20'\n"


def marked(value):
    """Returns the processes that have the mark with this value."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as file:
                if b"%s=%s\0" % (MARK.encode(), value.encode()) in file.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def wait_for(condition, what):
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("waited in vain for " + what)
        time.sleep(0.01)


class StopDemoTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.phases = os.path.join(self.folder, "phases")
        self.output = os.path.join(self.folder, "output")
        self.temporary = os.path.join(self.folder, "temporary")
        os.mkdir(self.temporary)
        self.mark = uuid.uuid4().hex
        self.addCleanup(self.kill_what_is_left)
        self.program("dpkg-query", ALL_INSTALLED)
        self.program("id", "echo 0\n")
        self.bazel()

    def kill_what_is_left(self):
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)

    def bazel(self, build="true"):
        self.program("bazel", BAZEL.format(build=build, programs=self.folder))

    def example(self, psd, train=TRAIN, evaluate=EVALUATE):
        self.program("server/daemon/psd", psd)
        self.program("examples/fashion_mnist/train", train)
        self.program("examples/fashion_mnist/evaluate", evaluate)

    def start(self, ignored=()):
        """Starts tools/demo on generated data, with some signals ignored from the beginning."""
        data = os.path.join(self.folder, "data")
        os.mkdir(data)
        demo_test.write_set(data, "train", 2560, seed=1)
        demo_test.write_set(data, "t10k", 200, seed=2)
        environment = dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"],
                           PSD_PHASES=self.phases, TMPDIR=self.temporary)
        environment[MARK] = self.mark

        def prepare():
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        with open(self.output, "w", encoding="utf-8") as output:
            return subprocess.Popen(["tools/demo", "--file", data], stdin=subprocess.DEVNULL,
                                    stdout=output, stderr=output, env=environment,
                                    start_new_session=True, preexec_fn=prepare)

    def said(self, text):
        with open(self.output, encoding="utf-8") as file:
            return text in file.read()

    def reached(self, phase):
        try:
            with open(self.phases, encoding="utf-8") as file:
                return phase in file.read().split()
        except FileNotFoundError:
            return False

    def expect_end(self, demo, number):
        """Checks that the demo ends with the code of the signal and leaves no process or file."""
        code = demo.wait(timeout=WAIT_S)
        with open(self.output, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(code, 128 + number, text)
        self.assertNotIn("result:", text)
        wait_for(lambda: not marked(self.mark), "the end of all processes: %s" % text)
        self.assertEqual(os.listdir(self.temporary), [])

    def test_packages(self):
        for number, ignored in ((signal.SIGINT, ()), (signal.SIGTERM, ()),
                                (signal.SIGINT, [signal.SIGINT])):
            with self.subTest(number=number, ignored=ignored):
                self.setUp()
                self.program("dpkg-query", NOTHING_INSTALLED)
                self.program("apt-get", INSTALLING)
                demo = self.start(ignored)
                wait_for(lambda: self.reached("packages"), "apt-get")
                demo.send_signal(number)
                self.expect_end(demo, number)

    def test_build(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number):
                self.setUp()
                self.bazel(build=HANGING.format("build"))
                demo = self.start()
                wait_for(lambda: self.reached("build"), "the build")
                demo.send_signal(number)
                self.expect_end(demo, number)

    def test_start_of_owners(self):
        self.example(psd=STARTING)
        demo = self.start()
        wait_for(lambda: self.reached("starting"), "the first owner")
        demo.send_signal(signal.SIGINT)
        self.expect_end(demo, signal.SIGINT)

    def test_training_with_the_real_programs(self):
        for number, ignored in ((signal.SIGINT, ()), (signal.SIGTERM, ()),
                                (signal.SIGINT, [signal.SIGINT])):
            with self.subTest(number=number, ignored=ignored):
                self.setUp()
                self.example(psd=RUN_REAL % demo_test.PSD, train=TRAIN_FOR_LONG % demo_test.TRAIN,
                             evaluate=RUN_REAL % demo_test.EVALUATE)
                demo = self.start(ignored)
                wait_for(lambda: self.said("epoch "), "training")
                demo.send_signal(number)
                self.expect_end(demo, number)

    def test_evaluation(self):
        self.example(psd=STOPPING.replace("until", "exit 0; until"),
                     evaluate=HANGING.format("evaluating"))
        demo = self.start()
        wait_for(lambda: self.reached("evaluating"), "the evaluation")
        demo.send_signal(signal.SIGTERM)
        self.expect_end(demo, signal.SIGTERM)

    def test_shutdown(self):
        self.example(psd=STOPPING)
        demo = self.start()
        wait_for(lambda: self.reached("stopping"), "the owners' end")
        demo.send_signal(signal.SIGTERM)
        with open(self.phases + ".go_on", "w", encoding="utf-8"):
            pass
        self.expect_end(demo, signal.SIGTERM)

    def test_left_alone_it_comes_to_its_result(self):
        self.example(psd=STOPPING.replace("until", "exit 0; until"))
        demo = self.start()
        self.assertEqual(demo.wait(timeout=WAIT_S), 0)
        self.assertTrue(self.said("result: accuracy=0.7500"))
        self.assertEqual(os.listdir(self.temporary), [])


if __name__ == "__main__":
    unittest.main()
