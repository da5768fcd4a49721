"""fuzz_test: a libFuzzer-style target that runs as an ordinary test.

A target defines `extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t)`. The driver runs it
over the corpus, then over `runs` seeded mutations. Link the same sources with libFuzzer or AFL
(`-fsanitize=fuzzer`) for long runs.
"""

load("//tools/cc:cc.bzl", "cc_test")

def fuzz_test(name, srcs, deps, corpus = [], runs = 20000, **kwargs):
    """Defines a fuzz target.

    Args:
      name: the name of the test, by convention <decoder>_fuzz.
      srcs: the sources, one of which defines LLVMFuzzerTestOneInput.
      deps: the libraries under test.
      corpus: the seed inputs, by convention glob(["corpus/<decoder>/*"]).
      runs: the number of mutations in a test run, which should take at most a few seconds.
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
