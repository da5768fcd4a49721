"""precompiled_header: a header that the compiler parses once for all files that include it first."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompile(ctx, toolchain, header, headers):
    """Compiles `header`, which may include `headers`. Returns the file."""
    clang = toolchain.compiler == "clang"
    compiled = ctx.actions.declare_file(header.basename + (".pch" if clang else ".gch"))
    requested = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        # The header belongs to no module.
        unsupported_features = ctx.disabled_features + ["layering_check", "module_maps"],
    )
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        # As Bazel compiles what goes into programs.
        use_pic = ctx.var["COMPILATION_MODE"] != "opt",
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = headers.includes,
        quote_include_directories = headers.quote_includes,
        system_include_directories = headers.system_includes,
        preprocessor_defines = headers.defines,
    )
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = variables,
    )
    # "-x c++-header" stands before the source, which is the last of the flags' inputs.
    arguments = ["-x", "c++-header"]
    if clang:
        # Clang stores absolute paths and times of files unless told otherwise. With -relocatable-pch,
        # paths below -isysroot, here the execution root, are relative.
        arguments += ["-Xclang", "-relocatable-pch", "-Xclang", "-fno-pch-timestamp"]

        # Clang takes the header only where the same rules hold.
        if cc_common.is_enabled(feature_configuration = requested, feature_name = "layering_check"):
            arguments.append("-fmodules-strict-decluse")
    action = dict(
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        inputs = depset([header], transitive = [headers.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.file.hdr.short_path,
    )
    compiler = cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
    )
    if clang:
        ctx.actions.run_shell(
            command = 'exec "$@" -isysroot "$PWD"',
            arguments = [compiler] + arguments + flags,
            **action
        )
    else:
        ctx.actions.run(executable = compiler, arguments = arguments + flags, **action)
    return compiled

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    dep_context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    headers = dep_context.compilation_context
    outputs = [header]

    # Clang takes a precompiled header only if it is told to (cc.bzl).
    if toolchain.compiler == "clang" and ctx.var.get("precompiled_headers") != "clang":
        ctx.actions.write(header, "")
    else:
        ctx.actions.expand_template(template = ctx.file.hdr, output = header, substitutions = {})
        outputs.append(_precompile(ctx, toolchain, header, headers))

    return [
        DefaultInfo(files = depset(outputs)),
        CcInfo(compilation_context = cc_common.merge_compilation_contexts(compilation_contexts = [
            headers,
            cc_common.create_compilation_context(
                headers = depset(outputs),
                quote_includes = depset([header.dirname]),
            ),
        ]) if hasattr(cc_common, "merge_compilation_contexts") else cc_common.create_compilation_context(
            headers = depset(outputs, transitive = [headers.headers]),
            includes = headers.includes,
            quote_includes = depset([header.dirname], transitive = [headers.quote_includes]),
            system_includes = headers.system_includes,
            defines = headers.defines,
        )),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
