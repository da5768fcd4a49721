"""Runs tools/gpu_check.py with programs that stand for nvidia-smi, the tests and the checkers."""
import os
import subprocess
import sys
import tempfile
import unittest

PASSED = "echo '[  PASSED  ] 12 tests.'"
SKIPPED = PASSED + "; echo '[  SKIPPED ] 3 tests, listed below:'"
FAILED = ("echo '[  PASSED  ] 11 tests.'; echo '[  FAILED  ] 1 test, listed below:'; "
          "echo '[  FAILED  ] A.B'; exit 1")
NONE = ', "peer": null, "speedup": null, '
MEASURED = (r"""echo '{"case": "gpu_opt_adam", "carrier": "none", "value": 0.6125, "unit": "ms",""" +
            r""" "p99": null%s"floor": 0.55, "efficiency": 0.898, "spread": 0.021}'""" % NONE)
ALONE = "; echo 'gpu_allreduce: not run: it needs 2 devices, and --devices names 1' >&2"
GPU = "echo 'NVIDIA Test, 580.1, 81920 MiB'"


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.page = os.path.join(self.folder.name, "gpu.md")
        self.write("gpu_test", PASSED)
        self.write("gpu_kernels_test", PASSED)
        self.write("bench", MEASURED + ALONE)

    def write(self, name, script):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n%s\n" % script)
        os.chmod(path, 0o755)

    def check(self, *arguments):
        """Returns the exit status, and the text of the page or None."""
        command = [sys.executable, "-B", "tools/gpu_check.py", "--page", self.page,
                   "--tests", self.folder.name, *arguments]
        # Only the programs of the folder are found.
        ran = subprocess.run(command, env={"PATH": self.folder.name}, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, check=False)
        self.errors = ran.stderr
        if not os.path.exists(self.page):
            return ran.returncode, None
        with open(self.page, encoding="utf-8") as file:
            return ran.returncode, file.read()

    def test_without_a_gpu_nothing_is_written(self):
        self.assertEqual(self.check(), (2, None))
        self.assertIn("this machine has no NVIDIA GPU: nvidia-smi", self.errors)
        self.write("nvidia-smi", "echo 'no driver'; exit 9")
        self.assertEqual(self.check(), (2, None))
        self.assertIn("this machine has no NVIDIA GPU: no driver", self.errors)

    def test_a_folder_without_tests_is_refused(self):
        self.write("nvidia-smi", GPU)
        os.remove(os.path.join(self.folder.name, "gpu_test"))
        self.assertEqual(self.check(), (2, None))
        self.assertIn("has no gpu_test; make it with --pack", self.errors)

    def test_the_page_names_the_gpu_and_what_did_not_run(self):
        self.write("nvidia-smi", GPU)
        status, page = self.check()
        self.assertEqual(status, 0)
        self.assertIn("GPU: NVIDIA Test, 81920 MiB. Driver: 580.1.", page)
        self.assertIn("| `gpu_test` | 12 passed |", page)
        self.assertIn("memcheck | not run: there is no compute-sanitizer |", page)
        self.assertIn("| cases of the benchmark | 1 measured |", page)
        self.assertIn("| `gpu_allreduce` | not run: it needs 2 devices", page)

    def test_the_page_has_the_results_of_the_benchmark(self):
        self.write("nvidia-smi", "%s; %s" % (GPU, GPU))
        self.write("bench", '[ "$*" = "--json --only=gpu_* --devices=cuda:0,cuda:1" ] || exit 7\n'
                   + MEASURED)
        status, page = self.check("--quick")
        self.assertEqual(status, 0)
        self.assertIn("GPU: 2 x NVIDIA Test, 81920 MiB.", page)
        self.assertIn("| `gpu_opt_adam` | 0.6125 | ms | 0.55 | 0.898 | 2.1 % |", page)
        self.assertNotIn("gpu_allreduce", page)

    def test_a_case_that_fails_is_a_failure(self):
        self.write("nvidia-smi", GPU)
        self.write("bench", MEASURED + "; echo 'gpu_mlp: INTERNAL: the loss | is wrong' >&2; exit 1")
        status, page = self.check("--quick")
        self.assertEqual(status, 1)
        self.assertIn("| cases of the benchmark | exit 1 |", page)
        self.assertIn("| `gpu_mlp` | INTERNAL: the loss \\| is wrong |", page)
        self.assertIn("| `gpu_opt_adam` | 0.6125 |", page)

    def test_a_benchmark_that_measures_nothing_is_a_failure(self):
        self.write("nvidia-smi", GPU)
        self.write("bench", "exit 0")
        status, page = self.check("--quick")
        self.assertEqual(status, 1)
        self.assertIn("| cases of the benchmark | exit 0 |", page)

    def test_checkers_run_on_every_test_unless_quick(self):
        self.write("nvidia-smi", GPU)
        self.write("compute-sanitizer", "[ $2 = racecheck ] && exit 1\n" + PASSED)
        status, page = self.check()
        self.assertEqual(status, 1)
        self.assertIn("`gpu_kernels_test` under compute-sanitizer's memcheck | 12 passed |", page)
        self.assertIn("`gpu_test` under compute-sanitizer's racecheck | exit 1; no case ended |",
                      page)
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


if __name__ == "__main__":
    unittest.main()
