"""Compiles the optimizers' kernels for GPUs and reads what nvcc and ptxas made of them.

Skipped where no nvcc is installed. No GPU is needed.
"""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

HOME = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
NVCC = os.path.join(HOME, "bin", "nvcc")
PTXAS = os.path.join(HOME, "bin", "ptxas")
ARCHITECTURES = ["80", "90", "100"]  # as in third_party/cuda/cuda_library.bzl
# As in kernels/cuda/BUILD.bazel.
OPTIONS = ["-std=c++17", "-O3", "-I.", "-fmad=false", "--expt-relaxed-constexpr"]
SOURCES = sorted(glob.glob("kernels/cuda/optim_*.cu"))
ROWS = "kernels/cuda/rows_step.cu"

# A kernel in PTX. Its mangled name has the parameter's element type behind "StepKernelI": f, d, or
# the name of a struct.
ENTRY = re.compile(r"\.entry (\w+)\(.*?^}", re.MULTILINE | re.DOTALL)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={"PATH": os.path.join(HOME, "bin") + ":/usr/bin:/bin"})
    if done.returncode != 0:
        raise AssertionError("%s failed:\n%s" % (" ".join(command), done.stdout))
    return done.stdout


def compile_source(source, architecture, folder):
    """Returns the PTX of a source and what ptxas says about it."""
    ptx = os.path.join(folder, "%s.%s.ptx" % (os.path.basename(source), architecture))
    run([NVCC, *OPTIONS, "-ptx", "-arch=compute_" + architecture, source, "-o", ptx])
    report = run([PTXAS, "-v", "-arch=sm_" + architecture, ptx, "-o", ptx + ".cubin"])
    with open(ptx) as file:
        return file.read(), report


class PtxTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder, \
                concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [(source, arch) for source in SOURCES + [ROWS] for arch in ARCHITECTURES]
            done = pool.map(lambda job: compile_source(*job, folder), jobs)
            cls.compiled = dict(zip(jobs, done))

    def test_every_optimizer_is_there(self):
        self.assertEqual(len(SOURCES), 7)
        kernels = [k for ptx, _ in self.compiled.values() for k in ENTRY.findall(ptx)]
        rows = [k for k in kernels if "RowsBody" in k or "StepRowwiseBody" in k]
        # The variants of all dense optimizers, each for four element types.
        self.assertEqual(len(kernels) - len(rows), 13 * 4 * len(ARCHITECTURES))
        # Sums, three variants of SGD, Adagrad, row-wise Adagrad and SparseAdam, for f32 and f64.
        self.assertEqual(len(rows), 7 * 2 * len(ARCHITECTURES))

    def test_no_kernel_spills_or_uses_local_memory(self):
        for source, (ptx, report) in self.compiled.items():
            spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                                r"(\d+) bytes spill loads", report)
            self.assertEqual(len(spills), len(ENTRY.findall(ptx)), source)
            for each in spills:
                self.assertEqual(each, ("0", "0", "0"), "%s:\n%s" % (source, report))

    def test_f32_is_loaded_and_stored_in_128_bits(self):
        checked = 0
        for source, (ptx, _) in self.compiled.items():
            for entry in ENTRY.finditer(ptx):
                if "StepKernelIf" not in entry.group(1):
                    continue
                body = entry.group(0)
                loads = len(re.findall(r"\bld\.(?:global\.)?v4\.[fub]32\b", body))
                stores = len(re.findall(r"\bst\.(?:global\.)?v4\.[fub]32\b", body))
                # Parameter and gradient are loaded, the next parameter is stored, and each array
                # of state is loaded and stored.
                self.assertEqual(loads, stores + 1, "%s: %s" % (source, entry.group(1)))
                self.assertGreaterEqual(stores, 1, "%s: %s" % (source, entry.group(1)))
                checked += stores - 1
        # The arrays of state of all variants together: SGD 0, 1, 1; Adagrad 1; Adam 2, 3; Adamax 2;
        # Adadelta 2; RMSprop 1, 2, 2, 3; Rprop 2.
        self.assertEqual(checked, 22 * len(ARCHITECTURES))

    def test_multiplications_and_additions_are_fused_only_by_name(self):
        for source, (ptx, _) in self.compiled.items():
            # nvcc writes mul and add without a rounding where it lets ptxas fuse them.
            loose = re.findall(r"\b(?:mul|add|sub)\.f(?:32|64)\b", ptx)
            self.assertEqual(loose, [], source)


if __name__ == "__main__":
    if not os.access(NVCC, os.X_OK) or os.environ.get("PSD_NO_CUDA") == "1":
        print("skipped: no nvcc in %s" % HOME)
        sys.exit(0)
    unittest.main()
