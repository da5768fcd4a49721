"""cc_library, cc_binary and cc_test of psd: Bazel's own, with the most used headers precompiled."""

def _precompile(kwargs, tests):
    # GCC takes a precompiled header only where the optimization is the same.
    if any([option.startswith("-O") for option in kwargs.get("copts", [])]):
        return
    header = "psd_test_precompiled" if tests else "psd_library_precompiled"
    kwargs["copts"] = select({
        str(Label("//tools/cc:off")): [],
        "//conditions:default": ["-include", "%s.h" % header],
    }) + kwargs.get("copts", [])
    kwargs["deps"] = select({
        str(Label("//tools/cc:off")): [],
        "//conditions:default": [Label("//tools/cc:" + header)],
    }) + kwargs.get("deps", [])

def cc_library(srcs = [], **kwargs):
    if srcs:
        _precompile(kwargs, tests = kwargs.get("testonly", False))
    native.cc_library(srcs = srcs, **kwargs)

def cc_binary(**kwargs):
    _precompile(kwargs, tests = kwargs.get("testonly", False))
    native.cc_binary(**kwargs)

def cc_test(**kwargs):
    _precompile(kwargs, tests = True)
    native.cc_test(**kwargs)
