"""Checks every #include "..." of the tree against the arrows between the layers.

Visibility keeps targets apart. This test keeps the files apart as well, has one table to read, and
also sees headers that no target lists, which Bazel does not notice.
"""
import os
import re
import sys

BASE = {"core/base"}
DEVICE = BASE | {"core/device"}
TENSOR = BASE | {"core/tensor"}
AUTOGRAD = TENSOR | {"core/autograd"}
CARRIER = BASE | {"core/carrier"}
RPC = CARRIER | {"core/rpc"}
STORE = AUTOGRAD | {"core/store"}
PROGRAM = AUTOGRAD | {"core/program"}
RREF = RPC | STORE | {"core/rref"}
DEVICE_LOANS = RREF | {"core/device_loans"}
DEVICE_PIECES = DEVICE_LOANS | {"core/device_pieces"}
DIST_AUTOGRAD = DEVICE_PIECES | {"core/dist_autograd"}
OPTIM = STORE | {"core/optim"}
DEVICE_KERNELS = DEVICE | OPTIM | {"core/device_kernels"}
CHECKPOINT = TENSOR | {"core/checkpoint"}
CHANGE = OPTIM | PROGRAM | RREF | CHECKPOINT | {"core/change"}
SERVICES = DIST_AUTOGRAD | CHANGE | {"core/services"}
CORE = SERVICES | {"core/runtime"}

# Layer -> the layers that it may include. A layer may always include itself. docs/architecture.md
# has the same table for readers, and tests/docs/architecture_test.py compares the two.
ARROWS = {
    "proto": set(),
    "kernels": set(),
    "core/base": set(),
    "core/device": DEVICE,
    "core/tensor": TENSOR | {"kernels"},
    "core/autograd": AUTOGRAD | {"kernels"},
    "core/carrier": CARRIER,
    "core/rpc": RPC | {"proto"},
    "core/store": STORE,
    "core/program": PROGRAM | {"proto"},
    "core/rref": RREF | {"proto"},
    "core/device_loans": DEVICE_LOANS | {"proto"},
    "core/device_pieces": DEVICE_PIECES | {"proto"},
    "core/dist_autograd": DIST_AUTOGRAD | {"proto"},
    "core/optim": OPTIM | {"kernels"},
    "core/device_kernels": DEVICE_KERNELS | {"kernels"},
    "core/checkpoint": CHECKPOINT,
    "core/change": CHANGE | {"kernels", "proto"},
    "core/services": SERVICES | {"kernels", "proto"},
    "core/runtime": CORE,
    "server": CORE | DEVICE_KERNELS | {"proto"},
    "client": CORE,
    "tools": AUTOGRAD | CHECKPOINT | {"client", "proto"},
    "examples": AUTOGRAD | {"client"},
    "examples/batch_updating_ps": AUTOGRAD | {"client", "server"},
    "examples/custom_daemon": AUTOGRAD | {"client", "server"},
    "bench": CORE | {"kernels", "client", "server"},
}
ANYTHING = {"tests"}  # may include every layer
# The layers that a folder of a user's program in this workspace may include. Bazel's visibility
# gives it only the public targets of these layers.
PUBLIC = {"client", "server"}
OUR_FOLDERS = {layer.partition("/")[0] for layer in [*ARROWS, *ANYTHING]}

# The folders of a layer in order. Each may include the folders before it.
ORDERS = {
    "core/optim": ["functional", "rows", "dense", "options", "parameters", "steps", "owner"],
}

# The public interface, and the most headers of core that it may reach, directly or through others.
# A user's compiler reads them all, and a change of any of them rebuilds every user.
INTERFACE = "client/psd.h"
MOST_INTERNAL_HEADERS = 36

# Layers whose folders include nothing of each other.
SEPARATE = {"core/services"}

SOURCE = re.compile(r"\.(h|cc|cu|cuh)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def layer_of(path):
    """Returns the longest layer that `path` lies in, or None."""
    parts = path.split("/")
    for length in (2, 1):
        prefix = "/".join(parts[:length])
        if len(parts) > length and (prefix in ARROWS or prefix in ANYTHING):
            return prefix
    return None


def order_of(path, layer):
    """Returns the position of the folder of `path` in the order of `layer`, or None."""
    folder = path[len(layer) + 1:].partition("/")[0]
    order = ORDERS.get(layer, [])
    return order.index(folder) if folder in order else None


def problem_within(layer, path, included):
    """Describes why the file at `path` may not include this file of its layer, or returns None."""
    if layer in SEPARATE:
        rooms = [p[len(layer) + 1:].partition("/")[0] for p in (path, included)]
        return None if rooms[0] == rooms[1] else "%s and %s are separate" % tuple(rooms)
    if layer not in ORDERS:
        return None
    place, target = order_of(path, layer), order_of(included, layer)
    if place is None:
        return "it lies in no known folder of %s" % layer
    if target is None or target <= place:
        return None
    return "it comes before %s" % ORDERS[layer][target]


def problem(path, included):
    """Describes why the file at `path` may not include `included`, or returns None."""
    layer, target = layer_of(path), layer_of(included)
    if layer is None and path.partition("/")[0] in OUR_FOLDERS:
        return "it lies in no known layer"
    if target is None:
        return None  # not a file of a layer, such as a system header
    if layer == target:
        return problem_within(layer, path, included)
    if layer in ANYTHING or target in ARROWS.get(layer, PUBLIC):
        return None
    return "%s may not include %s" % (layer or "a folder of yours", target)


def sources(root):
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if not n.startswith((".", "bazel-"))]
        if folder == root:
            names[:] = [n for n in names if n != "third_party"]
        for name in files:
            if SOURCE.search(name):
                yield os.path.relpath(os.path.join(folder, name), root)


def check_table():
    """Checks that the table itself allows and refuses the right includes."""
    for path, included, allowed in [
        ("core/base/x.h", "core/tensor/tensor.h", False),
        ("core/carrier/grpc/x.cc", "core/tensor/tensor.h", False),
        ("core/rpc/x.cc", "core/rref/ledger.h", False),
        ("core/rref/x.cc", "core/rpc/rpc_agent.h", True),
        ("core/runtime/x.cc", "server/daemon/config.h", False),
        ("client/x.cc", "server/daemon/config.h", False),
        ("client/psd.h", "core/services/calls/functions.h", True),
        ("kernels/cpu/x.cc", "core/tensor/tensor.h", False),
        ("core/autograd/x.h", "core/store/value.h", False),
        ("core/store/value.h", "core/autograd/variable.h", True),
        ("core/device/cuda/x.cc", "core/device/device_errors.h", True),
        ("core/device/cuda/x.cc", "kernels/cuda/operators_launch.h", False),
        ("core/device/cuda/x.cc", "core/device_kernels/cuda/launch.h", False),
        ("core/device_kernels/cuda/x.cc", "core/device/cuda/cuda_stream.h", True),
        ("core/device_kernels/cuda/x.cc", "kernels/cuda/operators_launch.h", True),
        ("core/checkpoint/x.h", "core/store/value.h", False),
        ("core/services/checkpoint/x.cc", "core/checkpoint/placement.h", True),
        ("core/services/values/x.cc", "core/services/rows/x.h", False),
        ("core/services/values/x.cc", "core/services/values/x.h", True),
        ("core/services/values/x.cc", "core/runtime/runtime.h", False),
        ("core/runtime/x.cc", "core/services/values/x.h", True),
        ("core/optim/owner/x.cc", "core/optim/steps/x.h", True),
        ("core/optim/steps/x.cc", "core/optim/owner/x.h", False),
        ("core/optim/x.cc", "core/optim/owner/x.h", False),
        ("tests/sim/x.cc", "server/daemon/config.h", True),
        ("elsewhere/x.h", "core/base/ids.h", False),
        ("elsewhere/x.cc", "client/psd.h", True),
        ("core/elsewhere/x.h", "client/psd.h", False),
        ("core/elsewhere/x.h", "core/base/ids.h", False),
    ]:
        assert (problem(path, included) is None) == allowed, (path, included)


def reached(root, path, seen):
    """Adds to `seen` the headers of the tree that `path` includes, directly or through others."""
    with open(os.path.join(root, path), encoding="utf-8") as source:
        for included in INCLUDE.findall(source.read()):
            if included not in seen and os.path.exists(os.path.join(root, included)):
                seen.add(included)
                reached(root, included, seen)
    return seen


def interface_problem(root):
    """Describes why the public interface reaches too much of core, or returns None."""
    internal = sorted(p for p in reached(root, INTERFACE, set()) if p.startswith("core/"))
    print("%s reaches %d headers of core" % (INTERFACE, len(internal)))
    if len(internal) <= MOST_INTERNAL_HEADERS:
        return None
    return "%s reaches more than %d headers of core; forward declare, or split a header:\n  %s" % (
        INTERFACE, MOST_INTERNAL_HEADERS, "\n  ".join(internal))


def main():
    check_table()
    # In the test's runfiles, WORKSPACE is a link into the source tree.
    root = os.path.dirname(os.path.realpath("WORKSPACE"))
    count, bad = 0, []
    for path in sorted(sources(root)):
        count += 1
        with open(os.path.join(root, path), encoding="utf-8") as source:
            text = source.read()
        for match in INCLUDE.finditer(text):
            why = problem(path, match.group(1))
            if why:
                line = text.count("\n", 0, match.start(1)) + 1
                bad.append('%s:%d: includes "%s": %s' % (path, line, match.group(1), why))
    why = interface_problem(root)
    if why:
        bad.append(why)
    print("%d files checked, %d bad includes" % (count, len(bad)))
    print("\n".join(bad))
    assert count > 10, "looked at the wrong folder: %s" % root
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
