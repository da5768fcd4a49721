"""fuzz_test: a libFuzzer-style target that runs as an ordinary test.

A target defines `extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t)`. The driver runs it
over the corpus, then over `runs` seeded mutations. Link the same sources with libFuzzer or AFL
(`-fsanitize=fuzzer`) for long runs.
"""

load("//tools/cc:cc.bzl", "cc_test")

def fuzz_test(name, srcs, deps, corpus = [], runs = 20000, **kwargs):
    """One fuzz target.

    Args:
      name: the test's name, by habit <decoder>_fuzz.
      srcs: sources; one defines LLVMFuzzerTestOneInput.
      deps: libraries under test.
      corpus: seed inputs, by habit glob(["corpus/<decoder>/*"]).
      runs: mutations per test run; keep the test under a few seconds.
      **kwargs: passed to cc_test.
    """
    cc_test(
        name = name,
        srcs = srcs,
        args = ["--runs=%d" % runs] + ["$(rootpath %s)" % file for file in corpus],
        data = corpus + ["//tools/sanitizers:tsan.supp"],
        deps = deps + ["//tests/fuzz:fuzz_driver"],
        **kwargs
    )
