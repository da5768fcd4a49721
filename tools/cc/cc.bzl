"""cc_library, cc_binary and cc_test of psd: Bazel's own, with the most used headers precompiled."""

def _precompile(kwargs, tests):
    # A precompiled header is only taken where the optimization is the same.
    if any([option.startswith("-O") for option in kwargs.get("copts", [])]):
        return
    header = "psd_test_precompiled" if tests else "psd_library_precompiled"
    target = Label("//tools/cc:" + header)
    kwargs["copts"] = select({
        str(Label("//tools/cc:off")): [],
        # Clang finds it only by its path, and relative paths in it below -isysroot (precompiled.bzl).
        str(Label("//tools/cc:clang")): ["-isysroot", ".", "-include-pch", "/".join(
            ["$(BINDIR)", target.workspace_root, target.package, header + ".h.pch"],
        )],
        "//conditions:default": ["-include", "%s.h" % header],
    }) + kwargs.get("copts", [])
    kwargs["deps"] = select({
        str(Label("//tools/cc:off")): [],
        "//conditions:default": [target],
    }) + kwargs.get("deps", [])
    if tests:
        # tests/layering checks them. Clang takes a precompiled header only where the same rules hold.
        kwargs["features"] = kwargs.get("features", []) + ["-layering_check"]
        kwargs["copts"] = kwargs["copts"] + select({
            str(Label("//tools/cc:unoptimized_tests")): ["-O0"],
            "//conditions:default": [],
        })

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
