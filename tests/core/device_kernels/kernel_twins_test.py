"""Holds the kernels of GPUs and those of emulated devices against each other.

Both sides run the same bodies, which are templates in kernels/cuda. What runs on one side alone is
the twin of something on the other side, and TWINS has the pair with the reason. So a kernel that
only one side has, a body that only one side runs, and an entry of the table that is not needed any
more are errors. kernel_names_test compares the names of both tables of kernels.
"""
import glob
import os
import re
import sys

# On GPUs, on emulated devices, and why they differ.
TWINS = [
    ("ElementKernel", "RunElement",
     "how elements are spread over threads; the body of an element is the same"),
    ("BlockKernel", "RunBlock",
     "what a block shares lies in the GPU's shared memory; the body of a block is the same"),
    ("StepKernel", "StepBody",
     "the table of a batch lies in the GPU's memory; the work of a thread is the same"),
    ("SquaresKernel", "SquaresBody",
     "as StepKernel, and with shared memory; the work of a block is the same"),
    ("cub::DeviceRadixSort::SortPairs", "SortPairs",
     "CUB is not written in phases between barriers, so the host cannot run it"),
    ("cub::DeviceScan::InclusiveSum", "SumUp",
     "CUB is not written in phases between barriers, so the host cannot run it"),
    ("cudaMemsetAsync", "WriteNoGroups",
     "the runtime of CUDA clears two numbers without a kernel"),
    ("lt.Matmul", "Multiply",
     "cublasLt has its kernels in a library; the host multiplies as the CPU does"),
]
# Headers of kernels that nvcc and the host's compiler read differently, and what differs.
DIFFERENT_HEADERS = {
    "kernels/host_device.h": "the marks of functions for GPUs",
    "kernels/cuda/arrays.h": "vector stores, which the host makes element by element",
    "kernels/cuda/block.h": "the threads of a block, which the host runs one after the other",
}

GPU_SOURCES = ["kernels/cuda/*.cu", "kernels/cuda/*.cuh", "core/device_kernels/cuda/*.h",
               "core/device_kernels/cuda/*.cc"]
PRODUCT_SOURCES = ["core/device/cuda/matrix_products.cc"]  # cublasLt's, which use no shared body
EMULATED_SOURCES = ["core/device_kernels/emulated/*.h", "core/device_kernels/emulated/*.cc"]
SHARED_HEADERS = ["kernels/cuda/*.h"]
HEADERS_OF_KERNELS = ["kernels/*.h", "kernels/*/*.h"]

COMMENT = re.compile(r"//[^\n]*")
# What runs on a GPU and is no shared body: kernels, calls of CUB, of cublasLt and of CUDA's runtime
# that write memory, and the intrinsics of warps.
ON_GPUS = re.compile(r"""__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(?P<kernel>\w+)\(
                         |(?P<call>\bcub::\w+::\w+(?=\()|\bcuda(?:Memset|Memcpy)\w*(?=\())
                         |\b(?P<library>lt)\(\)\.(?P<product>\w*Matmul)\(
                         |(?P<warp>\b__\w+_sync(?=\()|\b__syncwarp\b)""", re.VERBOSE)
# AddKernel(stream, name, count, Body<...>(), ...) and stream.Launch(name, count, Body(), ...).
ON_EMULATED_DEVICES = re.compile(
    r"\b(?:AddKernel|Launch)\((?:[^,()]+,\s*){2,3}(\w+)(?:<[^()]*>)?\(\)")
# Functions that run a body, and functions that are called in kernels.
WITH = re.compile(r"\bWith[A-Z]\w*(?=[<(])")
SHARED_FUNCTION = re.compile(r"^PSD_HOST_DEVICE (?:inline )?\w+ (\w+)\(", re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*__CUDA", re.MULTILINE)


def without_comments(source):
    return COMMENT.sub("", source)


def on_gpus(source):
    """Returns the names of what only a GPU runs."""
    found = set()
    for match in ON_GPUS.finditer(without_comments(source)):
        library = match.group("library")
        found.add("%s.%s" % (library, match.group("product")) if library else
                  match.group("kernel") or match.group("call") or match.group("warp"))
    return found


def on_emulated_devices(source):
    """Returns the names of the bodies that only an emulated device runs."""
    return set(ON_EMULATED_DEVICES.findall(without_comments(source)))


def shared(source, functions):
    """Returns what the source uses of kernels/cuda; `functions` are those called in kernels."""
    code = without_comments(source)
    words = set(re.findall(r"\b\w+(?=[<(])", code))
    return set(WITH.findall(code)) | (words & functions)


def differences(name, found, listed):
    """Returns a sentence for each name that is in one of the two alone."""
    return (["%s: %s has no twin in TWINS" % (name, each) for each in sorted(found - listed)] +
            ["%s: %s is no twin any more" % (name, each) for each in sorted(listed - found)])


def problems(gpu, products, emulated, headers, functions, twins):
    """Compares the two sides. `headers` has the text of each header of kernels."""
    bad = differences("GPUs", on_gpus(gpu) | on_gpus(products), {twin[0] for twin in twins})
    bad += differences("emulated devices", on_emulated_devices(emulated),
                       {twin[1] for twin in twins})
    here, there = shared(gpu, functions), shared(emulated, functions)
    bad += ["only GPUs use %s" % each for each in sorted(here - there)]
    bad += ["only emulated devices use %s" % each for each in sorted(there - here)]
    for path, text in sorted(headers.items()):
        differs = CONDITION.search(text) is not None
        if differs and path not in DIFFERENT_HEADERS:
            bad.append("%s differs for nvcc and is not in DIFFERENT_HEADERS" % path)
        if not differs and path in DIFFERENT_HEADERS:
            bad.append("%s is in DIFFERENT_HEADERS and does not differ for nvcc" % path)
        # Warps would have to be in kernels, not in headers that the host compiles too.
        bad += ["%s: %s cannot run on the host" % (path, each) for each in sorted(on_gpus(text))]
    bad += ["%s does not exist" % path for path in sorted(set(DIFFERENT_HEADERS) - set(headers))]
    return bad


def check_itself():
    twins = [("Kernel", "Body", "because"), ("cub::DeviceScan::InclusiveSum", "Sum", "because"),
             ("lt.Matmul", "Multiply", "because")]
    gpu = """template <typename P>
             __global__ void __launch_bounds__(kThreads, 1)
                 Kernel(const P p) { StepThread(p); }
             return cub::DeviceScan::InclusiveSum(a, b);  // cub::DeviceRadixSort::SortPairs(
             WithRows<true, RawArray>(a);"""
    products = "library->lt().Matmul(a); lt.MatmulDescCreate(b); return WithRemedy(c);"
    emulated = """AddKernel(stream, name, threads, Body<P, Update>(), table);
                  AddKernel(stream, "Sum", 1, Sum(), a);
                  stream.Launch(ops::kMatmul.name, 1, Multiply(), m);
                  void AddKernel(Stream* stream, const char* kernel, size_t count, Body body);
                  cuda::WithRows<DeviceArray>(a); kernels::cuda::StepThread<P>(a);"""
    headers = {path: "#ifdef __CUDA_ARCH__\n#endif\n" for path in DIFFERENT_HEADERS}

    def found(gpu=gpu, emulated=emulated, headers=headers, twins=twins):
        return problems(gpu, products, emulated, headers, {"StepThread", "Other"}, twins)

    assert found() == [], found()
    for more, bad in [
        ("__global__ void Lone(int* x) {}", ["GPUs: Lone has no twin in TWINS"]),
        ("cub::DeviceReduce::Sum(x)", ["GPUs: cub::DeviceReduce::Sum has no twin in TWINS"]),
        ("cudaMemsetAsync(x, 0)", ["GPUs: cudaMemsetAsync has no twin in TWINS"]),
        ("__shfl_down_sync(m, x, 1)", ["GPUs: __shfl_down_sync has no twin in TWINS"]),
        ("WithNew<RawArray>(x)", ["only GPUs use WithNew"]),
        ("Other(x)", ["only GPUs use Other"]),
    ]:
        assert found(gpu=gpu + more) == bad, (more, found(gpu=gpu + more))
    for more, bad in [
        ("Launch(name, 2, Lone(), a)", ["emulated devices: Lone has no twin in TWINS"]),
        ("cuda::WithNew<DeviceArray>(x)", ["only emulated devices use WithNew"]),
    ]:
        assert found(emulated=emulated + more) == bad, (more, found(emulated=emulated + more))
    assert found(twins=twins + [("Gone", "Left", "because")]) == [
        "GPUs: Gone is no twin any more", "emulated devices: Left is no twin any more"]
    new = dict(headers, **{"kernels/new.h": "#if defined(__CUDACC__)\n"})
    assert found(headers=new) == [
        "kernels/new.h differs for nvcc and is not in DIFFERENT_HEADERS"]
    same = dict(headers, **{"kernels/cuda/block.h": "#include <cstddef>\n__any_sync(m, x);\n"})
    assert found(headers=same) == [
        "kernels/cuda/block.h is in DIFFERENT_HEADERS and does not differ for nvcc",
        "kernels/cuda/block.h: __any_sync cannot run on the host"]


def read(root, patterns):
    """Returns the text of each file that matches, by its path from the root."""
    texts = {}
    for pattern in patterns:
        paths = glob.glob(os.path.join(root, pattern))
        assert paths, "no file matches %s in %s" % (pattern, root)
        for path in paths:
            with open(path, encoding="utf-8") as source:
                texts[os.path.relpath(path, root)] = source.read()
    return texts


def main():
    check_itself()
    # In the test's runfiles, WORKSPACE is a link into the source tree.
    root = os.path.dirname(os.path.realpath("WORKSPACE"))
    functions = set()
    for text in read(root, SHARED_HEADERS).values():
        functions |= set(SHARED_FUNCTION.findall(text))
    gpu, products, emulated = ("\n".join(read(root, patterns).values())
                               for patterns in [GPU_SOURCES, PRODUCT_SOURCES, EMULATED_SOURCES])
    bad = problems(gpu, products, emulated, read(root, HEADERS_OF_KERNELS), functions, TWINS)
    bad += ["TWINS gives no reason for %s" % twin[0] for twin in TWINS if not twin[2]]
    common = shared(gpu, functions) & shared(emulated, functions)
    print("%d bodies and functions of both sides, %d twins" % (len(common), len(TWINS)))
    print("\n".join(bad))
    assert len(common) > 10, "looked at the wrong files"
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
