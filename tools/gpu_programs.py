"""Builds the programs that tools/gpu_check runs, and packs them for other machines."""
import os
import re
import shutil
import subprocess
import tarfile

TARGETS = ["//tests/core/device_kernels/cuda:gpu_test", "//bench:bench"]
FLAGS = ["-c", "opt", "--config=cuda", "--strip=always"]
# Carried programs find their libraries beside themselves, and so do these libraries (DT_RPATH). They
# are without oneDNN, which would be larger than everything else together.
CARRIED_FLAGS = ["--//third_party/system:onednn=False", "--linkopt=-Wl,--disable-new-dtags",
                 "--linkopt=-Wl,-rpath,$ORIGIN/lib"]
CARRIED_NOTE = ("The programs were carried to this machine. They have no oneDNN, so the CPU of "
                "`gpu_mlp` is slower than psd is elsewhere.")
LIMIT_MIB = 48
# The libraries of glibc, which belong to the other machine's kernel and loader.
GLIBC = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread))\.so\.\d+")
LDD_LINE = re.compile(r"^\s*(\S+) => (not found|\S+)", re.MULTILINE)


class CannotBuild(Exception):
    """Why there are no programs."""


def bazel(*arguments, **options):
    try:
        return subprocess.run(["bazel", *arguments], text=True, check=True, **options)
    except OSError as error:
        raise CannotBuild("there is no Bazel (%s); on a machine with Bazel, "
                          "tools/gpu_check --pack makes a folder to carry" % error) from error
    except subprocess.CalledProcessError as error:
        raise CannotBuild("the programs could not be built") from error


def build(folder, more_flags=()):
    """Builds the programs and copies them to `folder`, without their debug information."""
    flags = [*FLAGS, *more_flags]
    bazel("build", *flags, *TARGETS)
    built = bazel("info", *flags, "bazel-bin", stdout=subprocess.PIPE).stdout.strip()
    os.makedirs(folder, exist_ok=True)
    for target in TARGETS:
        package, name = target[2:].split(":")
        shutil.copyfile(os.path.join(built, package, name), os.path.join(folder, name))
        os.chmod(os.path.join(folder, name), 0o755)


def copy_libraries(folder):
    """Copies the shared libraries of the programs to folder/lib."""
    libraries = {}
    for target in TARGETS:
        program = os.path.join(folder, target.partition(":")[2])
        said = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True)
        libraries.update(LDD_LINE.findall(said.stdout))
    os.mkdir(os.path.join(folder, "lib"))
    for name, path in sorted(libraries.items()):
        if GLIBC.fullmatch(name):
            continue
        if path == "not found":
            raise CannotBuild("the programs need %s, which this machine does not have" % name)
        shutil.copyfile(path, os.path.join(folder, "lib", name))


def pack(folder):
    """Makes `folder`, which must be new or empty, and an archive of it. Returns what to say."""
    folder = os.path.abspath(folder)
    if os.path.isdir(folder) and os.listdir(folder):
        raise CannotBuild("%s is not empty" % folder)
    build(folder, CARRIED_FLAGS)
    copy_libraries(folder)
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_check.py"), folder)
    with open(os.path.join(folder, "note.txt"), "w", encoding="utf-8") as file:
        file.write(CARRIED_NOTE + "\n")
    archive = folder + ".tar.xz"
    with tarfile.open(archive, "w:xz") as file:
        file.add(folder, arcname=os.path.basename(folder))
    mib = os.path.getsize(archive) / 2**20
    said = "%s has %.1f MiB" % (archive, mib)
    if mib > LIMIT_MIB:
        raise CannotBuild("%s, but at most %d are allowed" % (said, LIMIT_MIB))
    return said
