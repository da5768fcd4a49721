"""All that a workspace needs to use psd. README.md shows how; tests/external_workspace does it."""

load("//third_party/cuda:cuda_configure.bzl", "cuda_configure")
load("//third_party/system:system_repos.bzl", "system_repos")

def psd_dependencies():
    # Must come before anything else: it also replaces the http_archives of Bazel's own
    # DEFAULT.WORKSPACE.SUFFIX, so nothing is ever downloaded.
    system_repos()
    cuda_configure(name = "local_cuda")
