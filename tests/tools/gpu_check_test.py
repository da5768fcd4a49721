"""Runs tools/gpu_check.py with programs that stand for nvidia-smi, the tests and the checkers."""
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, "tools")
import gpu_check  # noqa: E402
import gpu_programs  # noqa: E402

PASSED = "echo '[  PASSED  ] 12 tests.'"
SKIPPED = PASSED + "; echo '[  SKIPPED ] 3 tests, listed below:'"
FAILED = ("echo '[  PASSED  ] 11 tests.'; echo '[  FAILED  ] 1 test, listed below:'; "
          "echo '[  FAILED  ] A.B'; exit 1")
FIRST_OF_TWO = """echo '[ RUN      ] A.First
[       OK ] A.First (0 ms)
[ RUN      ] A.Second'
"""
NO_NCCL = """[ RUN      ] GpuGroupSuite.Sums
gpu_group_suite.cc:40: Skipped
there is no libnccl.so.2

[  SKIPPED ] GpuGroupSuite.Sums (9 ms)"""
GPU = "echo 'NVIDIA Test, 580.1, 81920 MiB, 9.0'"
# A benchmark with these cases. Each case that is asked for runs its lines.
BENCH = """case "$*" in
--help) echo 'usage: bench'; echo 'cases: call_empty, gpu_opt_adam, gpu_mlp, gpu_allreduce' ;;
*--only=gpu_opt_adam*) %(gpu_opt_adam)s ;;
*--only=gpu_mlp*) %(gpu_mlp)s ;;
*--only=gpu_allreduce*) %(gpu_allreduce)s ;;
*) exit 7 ;;
esac"""
MEASURED = (r"""echo '{"case": "%s", "carrier": "none", "value": 0.6125, "unit": "ms", "p99": null,""" +
            r""" "peer": null, "speedup": null, "floor": 0.55, "efficiency": 0.898,""" +
            r""" "spread": 0.021}'""")
ALONE = "echo 'gpu_allreduce: not run: it needs 2 devices, and --devices names 1' >&2"

GOOD_CODE = """
	code for sm_90
		Function : _ZN3psd10StepKernelIfNS_4AdamEEE
        /*0010*/   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/   STG.E.128 desc[UR4][R2.64], R4 ;
		Function : _ZN3psd10StepKernelIdNS_4AdamEEE
        /*0010*/   LDG.E.64 R4, desc[UR4][R2.64] ;
		Function : _ZN3psd5OtherEv
        /*0010*/   STL.64 [R1], R4 ;
"""


def ran(out, status=0, err=""):
    return gpu_check.Ran(status, out, err, 1)


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.page = os.path.join(self.folder, "gpu.md")

    def write(self, name, script):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n%s\n" % script)
        os.chmod(path, 0o755)

    def write_bench(self, **cases):
        lines = {"gpu_opt_adam": MEASURED % "gpu_opt_adam", "gpu_mlp": MEASURED % "gpu_mlp",
                 "gpu_allreduce": ALONE}
        self.write("bench", BENCH % {**lines, **cases})

    def read_page(self):
        """Returns the text of the page or None."""
        if not os.path.exists(self.page):
            return None
        with open(self.page, encoding="utf-8") as file:
            return file.read()

    def environment(self):
        # Only the programs of the folder are found.
        return {"PATH": self.folder, "CUDA_HOME": self.folder}


class GpuCheckTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("gpu_test", PASSED)
        self.write_bench()

    def check(self, *arguments):
        """Returns the exit status and the text of the page or None."""
        command = [sys.executable, "-B", "tools/gpu_check.py", "--page", self.page,
                   "--tests", self.folder, *arguments]
        done = subprocess.run(command, env=self.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        self.errors = done.stderr
        return done.returncode, self.read_page()

    def test_without_a_gpu_nothing_is_written(self):
        self.assertEqual(self.check(), (2, None))
        self.assertIn("this machine has no NVIDIA GPU: nvidia-smi", self.errors)
        for what in ("gpu_test", "cases of the benchmark",
                     "gpu_test under compute-sanitizer's racecheck", "machine code of gpu_test"):
            self.assertIn("\nnot run: %s\n" % what, self.errors)
        self.assertIn("gpu.md stays as it is", self.errors)
        self.write("nvidia-smi", "echo 'no driver'; exit 9")
        self.assertEqual(self.check(), (2, None))
        self.assertIn("this machine has no NVIDIA GPU: no driver", self.errors)

    def test_a_folder_without_tests_is_refused(self):
        self.write("nvidia-smi", GPU)
        os.remove(os.path.join(self.folder, "gpu_test"))
        self.assertEqual(self.check(), (2, None))
        self.assertIn("has no gpu_test; make it with --pack", self.errors)

    def test_the_page_names_the_gpu_and_what_did_not_run(self):
        self.write("nvidia-smi", GPU)
        status, page = self.check()
        self.assertEqual(status, 0)
        self.assertIn("GPU: NVIDIA Test, 81920 MiB. Driver: 580.1.", page)
        self.assertIn("| `gpu_test` | 12 passed |", page)
        self.assertIn("| groups of GPUs in `gpu_test` | not run: they need 2 GPUs, and this machine "
                      "has 1 |", page)
        self.assertIn("memcheck | not run: there is no compute-sanitizer |", page)
        self.assertIn("| machine code of `gpu_test` | not run: there is no cuobjdump |", page)
        self.assertIn("| cases of the benchmark | 2 of 3 measured |", page)
        self.assertIn("| `gpu_allreduce` | not run: it needs 2 devices", page)

    def test_the_page_has_the_results_of_the_benchmark(self):
        self.write("nvidia-smi", "%s; %s" % (GPU, GPU))
        self.write_bench(gpu_allreduce='[ "$*" = "--json --only=gpu_allreduce --devices=cuda:0,cuda:1'
                         ' --blocks=3" ] || exit 7; ' + MEASURED % "gpu_allreduce")
        status, page = self.check("--quick")
        self.assertEqual(status, 0)
        self.assertIn("Written by `tools/gpu_check --quick` on 2", page)
        self.assertIn("GPU: 2 x NVIDIA Test, 81920 MiB.", page)
        self.assertIn("| `gpu_opt_adam` | 0.6125 | ms | 0.55 | 0.898 | 0.85 | 2.1 % |", page)
        self.assertIn("| `gpu_mlp` | 0.6125 | ms | 0.55 | 0.898 |  | 2.1 % |", page)
        self.assertIn("| `gpu_allreduce` | 0.6125 |", page)
        self.assertIn("| cases of the benchmark | 3 of 3 measured |", page)

    def test_a_case_below_its_aim_is_marked(self):
        row = {"value": 2, "unit": "ms", "floor": 1, "efficiency": 0.5, "spread": None}
        lines = gpu_check.results_table([
            {"case": case, **row} for case in ("gpu_opt_small", "gpu_opt_adam", "gpu_rows_update",
                                               "gpu_pull_256MiB", "gpu_step_adam", "gpu_mlp")])
        self.assertEqual([line.split(" | ")[5] for line in lines[-6:]],
                         ["0.4", "0.85, **below**", "0.6, **below**", "0.85, **below**",
                          "0.7, **below**", ""])

    def test_a_case_that_fails_is_a_failure_and_the_others_go_on(self):
        self.write("nvidia-smi", GPU)
        self.write_bench(gpu_opt_adam="kill -9 $$",
                         gpu_allreduce="echo 'gpu_allreduce: INTERNAL: | is wrong' >&2; exit 1")
        status, page = self.check("--quick")
        self.assertEqual(status, 1)
        self.assertIn("| cases of the benchmark | 1 of 3 measured |", page)
        self.assertIn("| `gpu_opt_adam` | exit -9 |", page)
        self.assertIn("| `gpu_allreduce` | INTERNAL: \\| is wrong |", page)
        self.assertIn("| `gpu_mlp` | 0.6125 |", page)

    def test_a_benchmark_that_measures_nothing_is_a_failure(self):
        self.write("nvidia-smi", GPU)
        none = {case: "echo '%s: not run: no driver' >&2" % case
                for case in ("gpu_opt_adam", "gpu_mlp", "gpu_allreduce")}
        self.write_bench(**none)
        status, page = self.check("--quick")
        self.assertEqual(status, 1)
        self.assertIn("| cases of the benchmark | 0 of 3 measured |", page)
        self.assertIn("| `gpu_mlp` | not run: no driver |", page)
        self.write_bench(gpu_mlp="exit 0")
        status, page = self.check("--quick")
        self.assertEqual(status, 1)
        self.assertIn("| `gpu_mlp` | exit 0 |", page)

    def test_checkers_run_unless_quick(self):
        self.write("nvidia-smi", GPU)
        self.write("compute-sanitizer",
                   PASSED + "; [ $2 = racecheck ] || exit 0; "
                   "echo '========= RACECHECK SUMMARY: 2 hazards displayed (2 errors)'; exit 1")
        status, page = self.check()
        self.assertEqual(status, 1)
        self.assertIn("`gpu_test` under compute-sanitizer's memcheck | 12 passed |", page)
        self.assertIn("racecheck | RACECHECK SUMMARY: 2 hazards displayed (2 errors); ", page)
        status, page = self.check("--quick")
        self.assertEqual(status, 0)
        self.assertIn("racecheck | not run: --quick |", page)

    def test_failed_and_skipped_cases_are_failures(self):
        self.write("nvidia-smi", GPU)
        self.write("gpu_test", FAILED)
        status, page = self.check()
        self.assertEqual(status, 1)
        self.assertIn("| `gpu_test` | 11 passed, 1 failed |", page)
        self.write("gpu_test", SKIPPED)
        status, page = self.check()
        self.assertEqual(status, 1)
        self.assertIn("| `gpu_test` | 12 passed, 3 skipped |", page)

    def test_groups_run_where_there_are_two_gpus(self):
        only_alone = '[ "$*" = "%s" ] || exit 7\n' + PASSED
        self.write("nvidia-smi", GPU)
        self.write("gpu_test", only_alone % "--gtest_filter=-GpuGroupSuite.*")
        self.assertEqual(self.check("--quick")[0], 0)
        self.write("nvidia-smi", "%s; %s" % (GPU, GPU))
        self.write("gpu_test", only_alone % "")
        status, page = self.check("--quick")
        self.assertEqual(status, 0)
        self.assertNotIn("groups of GPUs", page)

    def test_groups_without_nccl_are_not_run(self):
        self.write("nvidia-smi", "%s; %s" % (GPU, GPU))
        self.write("gpu_test", "echo \"%s\"; %s" % (NO_NCCL, SKIPPED))
        status, page = self.check("--quick")
        self.assertEqual(status, 1)  # three tests were skipped, and one of them is a group's
        self.assertIn("| groups of GPUs in `gpu_test` | not run: there is no libnccl.so.2 |", page)
        self.write("gpu_test", "echo \"%s\"; %s" % (NO_NCCL, SKIPPED.replace("3 tests", "1 test")))
        self.assertEqual(self.check("--quick")[0], 0)

    def test_machine_code_of_this_gpu_is_read(self):
        self.write("nvidia-smi", GPU)
        self.write("cuobjdump", '[ "$*" = "-sass -arch sm_90 %s/gpu_test" ] || exit 7\necho "%s"'
                   % (self.folder, GOOD_CODE))
        status, page = self.check("--quick")
        self.assertEqual(status, 0)
        self.assertIn("`gpu_test` | none of 2 kernels of optimizers has local memory; all 1 of f32",
                      page)

    def test_what_hangs_is_stopped_and_named_and_the_rest_goes_on(self):
        # A child keeps the files open.
        hang = "/bin/sleep 600 & /bin/sleep 600"
        self.write("gpu_test", FIRST_OF_TWO + hang)
        self.write_bench(gpu_opt_adam=hang)
        with mock.patch.multiple(gpu_check, LIMIT_S=30, TESTS_END=0.1), \
                mock.patch.dict(os.environ, self.environment(), clear=True):
            good, rows, results = gpu_check.check(self.folder, [["", "", "", "9.0"]], False,
                                                  time.monotonic())
        self.assertFalse(good)
        rows = dict(rows)
        self.assertIn(" s in A.Second: it had not ended", rows["`gpu_test`"])
        self.assertIn("it had not ended", rows["`gpu_opt_adam`"])
        self.assertEqual([row["case"] for row in results], ["gpu_mlp"])

    def test_nothing_starts_when_the_time_is_over(self):
        self.assertIsNone(gpu_check.run(["/bin/false"], time.monotonic()))
        self.assertEqual(gpu_check.judge_test(None), (False, "not run: there was no time left"))
        self.assertEqual(gpu_check.judge_checker(None), (True, "not run: there was no time left"))
        self.assertEqual(gpu_check.measure(self.folder, 1, [], time.monotonic())[0], False)


class JudgeTest(unittest.TestCase):
    def test_a_crash_names_its_case(self):
        self.assertEqual(gpu_check.judge_test(ran("[ RUN      ] A.B\n", status=-11)),
                         (False, "exit -11 in A.B; no count"))

    def test_a_checker_that_may_not_work_is_no_failure(self):
        for said in ("========= Error: Target application terminated before first instrumented\n",
                     "========= Device not supported. Please refer to the documentation\n"):
            good, outcome = gpu_check.judge_checker(ran(said, status=1))
            self.assertTrue(good)
            self.assertIn("not run: compute-sanitizer says: ", outcome)

    def test_a_checker_without_an_answer_is_a_failure(self):
        crashed = ("[ RUN      ] Gpu.Adds\n"
                   "========= Error: process didn't terminate successfully\n")
        good, outcome = gpu_check.judge_checker(ran(crashed, status=255))
        self.assertFalse(good)
        self.assertIn("exit 255 in Gpu.Adds", outcome)
        self.assertEqual(gpu_check.judge_checker(ran("", status=1)),
                         (False, "exit 1; no count"))

    def test_a_checker_that_is_stopped_is_no_failure_unless_it_found_something(self):
        out = "[ RUN      ] A.B\n[       OK ] A.B (9 ms)\n[ RUN      ] A.C\n"
        good, outcome = gpu_check.judge_checker(ran(out, status=None))
        self.assertTrue(good)
        self.assertEqual(outcome, "not run to the end: stopped after 1 s in A.C: it had not ended; "
                                  "1 cases had passed, and nothing was found")
        found = "========= Invalid __global__ read of size 4 bytes\n"
        self.assertFalse(gpu_check.judge_checker(ran(out + found, status=None))[0])
        summary = "========= ERROR SUMMARY: 10 errors\n"
        self.assertFalse(gpu_check.judge_checker(ran(out + summary, status=0))[0])

    def test_machine_code_that_is_bad_is_named(self):
        self.assertTrue(gpu_check.judge_sass(GOOD_CODE)[0])
        for good, bad, fault in (("LDG.E.64", "LDL.64", "local memory"),
                                 ("LDG.E.128", "LDG.E.64", "no loads and stores of 128 bits"),
                                 ("STG.E.128", "STG.E", "no loads and stores of 128 bits"),
                                 ("StepKernelIf", "StepKernelIh", "no kernel of an optimizer")):
            passed, outcome = gpu_check.judge_sass(GOOD_CODE.replace(good, bad))
            self.assertFalse(passed)
            self.assertIn(fault, outcome)

    def test_code_of_a_gpu_that_runs_ptx_is_not_read(self):
        with mock.patch.object(gpu_check, "find_tool", return_value="/bin/false"):
            until = time.monotonic() + 60
            self.assertEqual(gpu_check.check_sass("", "12.0", until),
                             (True, "not run: the programs have only PTX for sm_120"))
            self.assertEqual(gpu_check.check_sass("", "8.9", until),
                             (True, "not run: cuobjdump: exit 1"))


class PackTest(FolderTest):
    """Packs programs that a program in the place of Bazel has built."""

    def setUp(self):
        super().setUp()
        self.packed = os.path.join(self.folder, "carried")
        built = os.path.join(self.folder, "bin")
        for target, script in zip(gpu_programs.TARGETS, (PASSED, BENCH % {
                "gpu_opt_adam": MEASURED % "gpu_opt_adam", "gpu_mlp": MEASURED % "gpu_mlp",
                "gpu_allreduce": ALONE})):
            package, name = target[2:].split(":")
            os.makedirs(os.path.join(built, package))
            self.write(os.path.join("bin", package, name), script)
        self.write("bazel", 'echo "$@" >>%s/asked; [ "$1" = build ] || echo %s' % (self.folder, built))
        self.write("libfound.so.1", "")
        self.write_ldd("libfound.so.1 => %s/libfound.so.1 (0x1)" % self.folder)

    def write_ldd(self, line):
        self.write("ldd", "echo '\tlinux-vdso.so.1 (0x7)\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\t%s'"
                   % line)

    def pack(self):
        with mock.patch.dict(os.environ, self.environment(), clear=True):
            return gpu_programs.pack(self.packed)

    def test_a_folder_has_programs_and_libraries_and_runs_anywhere(self):
        self.assertIn("carried.tar.xz has 0.0 MiB", self.pack())
        with open(os.path.join(self.folder, "asked"), encoding="utf-8") as file:
            asked = file.read()
        self.assertIn("--config=cuda --strip=always --//third_party/system:onednn=False", asked)
        self.assertIn("-rpath,$ORIGIN/lib", asked)
        self.write("nvidia-smi", GPU)
        other = os.path.join(self.folder, "other")
        with tarfile.open(self.packed + ".tar.xz") as file:
            file.extractall(other)
        there = os.path.join(other, "carried")
        self.assertEqual(os.listdir(os.path.join(there, "lib")), ["libfound.so.1"])
        done = subprocess.run([sys.executable, "-B", os.path.join(there, "gpu_check.py"), "--quick"],
                              cwd="/", env=self.environment(), stdout=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 0)
        self.page = os.path.join(there, "gpu.md")
        self.assertIn("| `gpu_test` | 12 passed |", self.read_page())
        self.assertIn("They have no oneDNN", self.read_page())

    def test_what_cannot_be_carried_is_refused(self):
        self.write_ldd("liblost.so.1 => not found")
        with self.assertRaisesRegex(gpu_programs.CannotBuild, "need liblost.so.1"):
            self.pack()
        with self.assertRaisesRegex(gpu_programs.CannotBuild, "is not empty"):
            self.pack()

    def test_a_large_pack_is_refused(self):
        with mock.patch.object(gpu_programs, "LIMIT_MIB", 0), \
                self.assertRaisesRegex(gpu_programs.CannotBuild, "but at most 0 are allowed"):
            self.pack()

    def test_without_bazel_or_when_the_build_fails_that_is_said(self):
        self.write("bazel", "exit 1")
        with self.assertRaisesRegex(gpu_programs.CannotBuild, "could not be built"):
            self.pack()
        os.remove(os.path.join(self.folder, "bazel"))
        with self.assertRaisesRegex(gpu_programs.CannotBuild, "there is no Bazel"):
            self.pack()


if __name__ == "__main__":
    unittest.main()
