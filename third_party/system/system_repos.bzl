"""Defines Bazel repositories for system (apt) libraries, and stubs for repositories that Bazel 4.x
would otherwise download (rules_cc, rules_java, rules_proto, coverage tools)."""

# ------------------------------------------------------------------ stubs --
_STUBS = {
    "cc": [
        "cc_binary", "cc_test", "cc_library", "cc_import", "cc_proto_library",
        "cc_toolchain", "cc_toolchain_suite", "fdo_profile",
        "fdo_prefetch_hints", "objc_library",
    ],
    "java": [
        "java_binary", "java_import", "java_library", "java_plugin",
        "java_runtime", "java_test", "java_toolchain",
        "java_package_configuration",
    ],
    "proto": ["proto_library", "proto_lang_toolchain"],
}

def _stub_rules_impl(rctx):
    d = rctx.attr.dir
    rctx.file("WORKSPACE", "workspace(name = %r)\n" % rctx.name)
    rctx.file("BUILD.bazel", "")
    rctx.file(d + "/BUILD.bazel", "exports_files([\"defs.bzl\"])\n")
    rctx.file(d + "/defs.bzl", "".join(["%s = native.%s\n" % (n, n) for n in _STUBS[d]]))

_stub_rules = repository_rule(
    implementation = _stub_rules_impl,
    attrs = {"dir": attr.string(mandatory = True)},
)

# Replaces Bazel's Java CoverageOutputGenerator: converts gcov JSON to lcov, and merges reports.
_COVERAGE_PY = """#!/usr/bin/python3 -B
import collections, glob, gzip, json, os, re, sys
opt = collections.defaultdict(list)
for a in sys.argv[1:]:
    if a.startswith("--") and "=" in a:
        k, v = a[2:].split("=", 1)
        opt[k].append(v)
skip = [re.compile(f) for f in opt["filter_sources"]]
lines = collections.defaultdict(lambda: collections.defaultdict(int))
def lcov(path):
    cur = None
    for l in open(path, errors="replace"):
        l = l.strip()
        if l.startswith("SF:"): cur = l[3:]
        elif l.startswith("DA:"):
            n, c = l[3:].split(",")[:2]
            lines[cur][int(n)] += int(c)
for d in opt["coverage_dir"]:
    for f in glob.glob(d + "/**/*.gcov.json.gz", recursive=True):
        for src in json.load(gzip.open(f))["files"]:
            name = src["file"]
            if name.startswith("/") or any(r.match(name) for r in skip): continue
            for l in src["lines"]: lines[name][l["line_number"]] += l["count"]
for rf in opt["reports_file"]:
    for f in open(rf).read().split():
        if os.path.exists(f): lcov(f)
with open(opt["output_file"][0], "w") as o:
    for name in sorted(lines):
        ls = lines[name]
        o.write("SF:%s\\n" % name)
        for n in sorted(ls): o.write("DA:%d,%d\\n" % (n, ls[n]))
        hit = sum(1 for c in ls.values() if c)
        o.write("LH:%d\\nLF:%d\\nend_of_record\\n" % (hit, len(ls)))
"""

def _stub_coverage_impl(rctx):
    rctx.file("WORKSPACE", "")
    rctx.file("BUILD.bazel", """\
package(default_visibility = ["//visibility:public"])
sh_binary(name = "coverage_report_generator", srcs = ["cov.py"])
sh_binary(name = "lcov_merger", srcs = ["cov.py"])
""")
    rctx.file("cov.py", _COVERAGE_PY, executable = True)

_stub_coverage = repository_rule(implementation = _stub_coverage_impl)

# ----------------------------------------------------------- system libs ---
def _run(rctx, args):
    r = rctx.execute(args)
    if r.return_code != 0:
        fail("%s failed (apt-get install the -dev package?):\n%s%s" %
             (" ".join(args), r.stdout, r.stderr))
    return r.stdout.strip()

def _pc(rctx, flags, pkgs):
    return [t for t in _run(rctx, ["pkg-config"] + flags + pkgs).split(" ") if t]

def _uniq_keep_last(tokens):
    """Keeps the last of equal tokens (-lX -lY -lX becomes -lY -lX), as static linking needs."""
    seen = {}
    out = []
    for t in reversed(tokens):
        if t.startswith("-l") and t in seen:
            continue
        seen[t] = True
        out.append(t)
    return reversed(out)

# The label of the setting, as the repositories of system libraries must write it. It works whether
# psd is the main repository or not: as a text, a label of the main repository does not name its
# repository.
_STATIC_LINK_LABEL = str(Label("//third_party/system:static_link"))
_STATIC_LINK = _STATIC_LINK_LABEL if _STATIC_LINK_LABEL.startswith("@") else "@" + _STATIC_LINK_LABEL

_BUILD_LIB = """
cc_library(
    name = {name},
    defines = {defines},
    linkopts = select({{
        "{static_link}": {static},
        "//conditions:default": {shared},
    }}),
)
"""

# Parts of glibc, which are never linked statically.
_GLIBC = ["-lpthread", "-ldl", "-lrt", "-lm", "-lc"]

def _static(rctx, libdir, tokens):
    """Replaces -lX by -l:libX.a if Debian ships the archive."""
    out = []
    for t in tokens:
        if t.startswith("-l") and t not in _GLIBC and rctx.path(libdir + "/lib" + t[2:] + ".a").exists:
            out.append("-l:lib" + t[2:] + ".a")
        else:
            out.append(t)
    return ["-Wl,--start-group"] + out + ["-Wl,--end-group"]

def _libs(rctx, flags, pkgs):
    return [t for t in _uniq_keep_last(_pc(rctx, flags, pkgs)) if not t.startswith("-Wl,")]

def _cc_lib(rctx, name, pkgs):
    # pkg-config --variable=libdir would be wrong: Debian's grpc*.pc have /usr/lib there.
    libdir = "/usr/lib/" + _run(rctx, ["gcc", "-print-multiarch"])
    return _BUILD_LIB.format(
        name = repr(name),
        defines = repr([c[2:] for c in _pc(rctx, ["--cflags"], pkgs) if c.startswith("-D")]),
        shared = repr(["-Wl,--as-needed"] + _libs(rctx, ["--libs"], pkgs)),
        static_link = _STATIC_LINK,
        static = repr(["-Wl,--as-needed"] + _static(rctx, libdir, _libs(rctx, ["--static", "--libs"], pkgs))),
    )

_SPDLOG_HEADER_ONLY = """
# Debian has no libspdlog.a and no libfmt.a, so a static link uses them header-only.
cc_library(
    name = "fmt",
    defines = select({{
        "{static_link}": ["FMT_HEADER_ONLY=1"],
        "//conditions:default": [],
    }}),
    linkopts = select({{
        "{static_link}": [],
        "//conditions:default": ["-Wl,--as-needed", "-lfmt"],
    }}),
)
cc_library(
    name = "spdlog",
    defines = ["SPDLOG_FMT_EXTERNAL"] + select({{
        "{static_link}": [],
        "//conditions:default": ["SPDLOG_SHARED_LIB", "SPDLOG_COMPILED_LIB"],
    }}),
    linkopts = select({{
        "{static_link}": ["-lpthread"],
        "//conditions:default": ["-Wl,--as-needed", "-lspdlog", "-lpthread"],
    }}),
    deps = [":fmt"],
)
""".format(static_link = _STATIC_LINK)

# Debian ships oneDNN without a .pc file, and shared only.
_DNNL = """
cc_library(
    name = "dnnl",
    linkopts = ["-Wl,--as-needed", "-ldnnl", "-lgomp"],
)
"""

def _tool(rctx, name):
    p = rctx.which(name)
    if not p:
        fail("%s not found in PATH (apt-get install protobuf-compiler protobuf-compiler-grpc)" % name)
    rctx.symlink(p, "bin/" + name)

def _system_deps_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = %r)\n" % rctx.name)
    b = "package(default_visibility = [\"//visibility:public\"])\n"
    for (name, pkgs) in rctx.attr.libs.items():
        b += _cc_lib(rctx, name, pkgs)
    b += _SPDLOG_HEADER_ONLY
    b += _DNNL
    for t in rctx.attr.tools:
        _tool(rctx, t)
    b += "exports_files(%r)\n" % ["bin/" + t for t in rctx.attr.tools]
    rctx.file("BUILD.bazel", b)

_system_deps = repository_rule(
    implementation = _system_deps_impl,
    configure = True,
    environ = ["PKG_CONFIG_PATH"],
    attrs = {
        "libs": attr.string_list_dict(),
        "tools": attr.string_list(),
    },
)

# The .pc names of Abseil by Bazel label. Extend this when a new target is used.
_ABSL = {
    "absl/base:core_headers": "absl_core_headers",
    "absl/cleanup:cleanup": "absl_cleanup",
    "absl/container:btree": "absl_btree",
    "absl/container:flat_hash_map": "absl_flat_hash_map",
    "absl/container:flat_hash_set": "absl_flat_hash_set",
    "absl/flags:flag": "absl_flags",
    "absl/container:inlined_vector": "absl_inlined_vector",
    "absl/flags:parse": "absl_flags_parse",
    "absl/flags:usage": "absl_flags_usage",
    "absl/functional:any_invocable": "absl_any_invocable",
    "absl/functional:function_ref": "absl_function_ref",
    "absl/hash:hash": "absl_hash",
    "absl/random:random": "absl_random_random",
    "absl/status:status": "absl_status",
    "absl/status:statusor": "absl_statusor",
    "absl/strings:str_format": "absl_str_format",
    "absl/strings:strings": "absl_strings",
    "absl/synchronization:synchronization": "absl_synchronization",
    "absl/time:time": "absl_time",
    "absl/types:span": "absl_span",
}

def _absl_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = %r)\n" % rctx.name)
    pkgs = {}
    for (label, pc) in _ABSL.items():
        (pkg, name) = label.split(":")
        pkgs[pkg] = pkgs.get(pkg, "package(default_visibility = [\"//visibility:public\"])\n") + _cc_lib(rctx, name, [pc])
    for (pkg, text) in pkgs.items():
        rctx.file(pkg + "/BUILD.bazel", text)
    rctx.file("BUILD.bazel", "")

_absl = repository_rule(
    implementation = _absl_impl,
    configure = True,
    environ = ["PKG_CONFIG_PATH"],
)

def _alias_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = %r)\n" % rctx.name)
    rctx.file("BUILD.bazel", "".join([
        "alias(name = %r, actual = %r, visibility = [\"//visibility:public\"])\n" % (k, v)
        for (k, v) in rctx.attr.aliases.items()
    ]))

_alias_repo = repository_rule(implementation = _alias_impl, attrs = {"aliases": attr.string_dict()})

def _unless_defined(rule, name, **attributes):
    """Defines a repository, unless the workspace that uses psd has defined one under that name."""
    if native.existing_rule(name) == None:
        rule(name = name, **attributes)

def _from_system(rule, name, **attributes):
    """Defines a repository that must be Debian's, because Debian's gRPC was built with it."""
    defined = native.existing_rule(name)
    if defined != None and defined["kind"] not in ["_absl", "_alias_repo", "_system_deps"]:
        fail("This workspace defines @%s, but psd links Debian's gRPC, and " % name +
             "nothing but Debian's own packages fits that. Remove it, and use the one that " +
             "psd_dependencies() defines under the same name.")
    rule(name = name, **attributes)

def system_repos():
    _unless_defined(_stub_rules, name = "rules_cc", dir = "cc")
    _unless_defined(_stub_rules, name = "rules_java", dir = "java")
    _unless_defined(_stub_rules, name = "rules_proto", dir = "proto")
    _unless_defined(_stub_coverage, name = "remote_coverage_tools")

    _from_system(
        _system_deps,
        name = "system_deps",
        libs = {
            "grpc++": ["grpc++"],
            "protobuf": ["protobuf"],
            "gtest": ["gtest"],
            "gtest_main": ["gtest_main"],
            "gmock": ["gmock"],
            "crypto": ["libcrypto"],
            "hwy": ["libhwy"],
            "nlohmann_json": ["nlohmann_json"],
            "yaml-cpp": ["yaml-cpp"],
            "xxhash": ["libxxhash"],
            "zlib": ["zlib"],
        },
        tools = ["protoc", "grpc_cpp_plugin", "grpc_python_plugin"],
    )
    _from_system(_absl, name = "com_google_absl")
    _from_system(_alias_repo, name = "grpc", aliases = {"grpc++": "@system_deps//:grpc++"})
    _from_system(_alias_repo, name = "com_google_protobuf", aliases = {"protobuf": "@system_deps//:protobuf"})
    _unless_defined(_alias_repo, name = "com_google_googletest", aliases = {
        "gtest": "@system_deps//:gtest",
        "gtest_main": "@system_deps//:gtest_main",
        "gmock": "@system_deps//:gmock",
    })
    _from_system(_alias_repo, name = "com_github_gabime_spdlog", aliases = {"spdlog": "@system_deps//:spdlog"})
