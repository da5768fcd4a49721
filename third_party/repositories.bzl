"""Defines all that a workspace needs to use psd. README.md describes it, and
tests/external_workspace is an example."""

load("//third_party/cuda:cuda_configure.bzl", "cuda_configure")
load("//third_party/system:system_repos.bzl", "system_repos")

def psd_dependencies():
    # This call must come first. It also replaces the http_archives of Bazel's own
    # DEFAULT.WORKSPACE.SUFFIX, so nothing is downloaded.
    system_repos()
    cuda_configure(name = "local_cuda")
