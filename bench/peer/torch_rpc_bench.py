#!/usr/bin/python3
"""Runs psd's standard workloads on the peer: PyTorch RPC, distributed autograd, DistributedOptimizer.

usage: torch_rpc_bench.py [--transport shm|tcp] [--only CASE]... [--blocks N]
       torch_rpc_bench.py --serve        for bench:compare, which interleaves its own blocks

One owner and one trainer on this machine, one thread each for tensors. Prints one JSON line per
case: the median over blocks, in seconds per operation. Needs Debian's python3-torch.

With --serve: prints "ready DESCRIPTION", then answers each line "start CASE", "block CASE" or
"stop CASE" with "ok [seconds]" or "error TEXT", until its input is closed.
"""
import argparse
import collections
import ctypes
import json
import os
import signal
import socket
import statistics
import sys
import time

try:
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc
    import torch.multiprocessing as multiprocessing
    from torch.distributed.optim import DistributedOptimizer, ZeroRedundancyOptimizer
    from torch.distributed.optim.utils import functional_optim_map
except ImportError as missing:
    print("error %s" % missing, flush=True)
    sys.exit(1)

OWNER = "owner0"
# TensorPipe itself chooses shm on one host, and tcp between two hosts. For tcp the channel is named
# too; otherwise the kernel would still copy large tensors from process to process.
TRANSPORTS = {"shm": {}, "tcp": {"_transports": ["uv"], "_channels": ["basic"]}}

# ---- on the owner

STORE = {}


def noop():
    return None


def make(name, elements, requires_grad):
    generator = torch.Generator().manual_seed(1)
    tensor = torch.empty(elements).uniform_(-0.1, 0.1, generator=generator)
    STORE[name] = tensor.requires_grad_(requires_grad)


def fetch(name):
    return STORE[name]


def fetch_many(names):
    return [STORE[name] for name in names]


def half_squares(names):
    return 0.5 * sum((STORE[name] * STORE[name]).sum() for name in names)


def chain(x, b, c, operators):
    for i in range(operators):
        x = x + b if i % 2 == 0 else x * c
    return x


def make_table(name, rows, width):
    generator = torch.Generator().manual_seed(1)
    table = torch.empty(rows, width).uniform_(-0.1, 0.1, generator=generator)
    STORE[name] = table.requires_grad_(True)


def embed(name, ids):
    return torch.nn.functional.embedding(ids, STORE[name], sparse=True)


def reference(name):
    return rpc.RRef(STORE[name])


def drop(names):
    for name in names:
        STORE.pop(name, None)


# ---- on the trainer


def time_each(count, operation):
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        operation()
        seconds.append(time.perf_counter() - start)
    return seconds


class CallEmpty:
    """An empty call, one at a time."""

    def start(self):
        time_each(200, self.call)

    def call(self):
        rpc.rpc_sync(OWNER, noop)

    def block(self):
        return statistics.median(time_each(300, self.call))

    def stop(self):
        pass


class CallParked(CallEmpty):
    """An empty call after a pause of 1 ms."""

    CALLS = 200

    def block(self):
        seconds = []
        for _ in range(self.CALLS):
            time.sleep(0.001)
            seconds += time_each(1, self.call)
        return statistics.median(seconds)


class Call64(CallEmpty):
    """Empty calls, 64 in flight; the mean time of one."""

    CALLS, IN_FLIGHT = 2000, 64

    def block(self):
        return time_each(1, self.all)[0] / self.CALLS

    def all(self):
        pending = collections.deque()
        for _ in range(self.CALLS):
            pending.append(rpc.rpc_async(OWNER, noop))
            if len(pending) >= self.IN_FLIGHT:
                pending.popleft().wait()
        while pending:
            pending.popleft().wait()


class Pull:
    """A tensor pulled and read once."""

    def __init__(self, mebibytes, pulls):
        self.elements, self.pulls = mebibytes << 18, pulls

    def start(self):
        rpc.rpc_sync(OWNER, make, ("pulled", self.elements, False))
        self.pull()

    def pull(self):
        rpc.rpc_sync(OWNER, fetch, ("pulled",)).sum()

    def block(self):
        return statistics.median(time_each(self.pulls, self.pull))

    def stop(self):
        rpc.rpc_sync(OWNER, drop, (["pulled"],))


class Step:
    """Pull all parameters, loss = 0.5 * sum of p * c, backward, step."""

    def __init__(self, tensors, elements, optimizer, options, steps):
        self.names = ["p%d" % i for i in range(tensors)]
        self.elements, self.optimizer, self.options = elements, optimizer, options
        self.steps = steps

    def start(self):
        for name in self.names:
            rpc.rpc_sync(OWNER, make, (name, self.elements, True))
        references = [rpc.rpc_sync(OWNER, reference, (name,)) for name in self.names]
        self.distributed = DistributedOptimizer(self.optimizer, references, **self.options)
        # Every tensor has its own coefficients and a scale, so no gradient is an alias of another.
        generator = torch.Generator().manual_seed(11)
        self.coefficients = [
            torch.empty(self.elements).uniform_(-1e-3, 1e-3, generator=generator)
            for _ in self.names
        ]
        time_each(2, self.step)

    def step(self):
        with dist_autograd.context() as context:
            values = rpc.rpc_async(OWNER, fetch_many, (self.names,)).wait()
            loss = 0.5 * sum((p * c).sum() for p, c in zip(values, self.coefficients))
            dist_autograd.backward(context, [loss])
            self.distributed.step(context)

    def block(self):
        return statistics.median(time_each(self.steps, self.step))

    def stop(self):
        self.distributed = self.coefficients = None
        rpc.rpc_sync(OWNER, drop, (self.names,))


class Autograd1000:
    """One call that uses 1,000 parameters of the owner, backward, an SGD step."""

    def start(self):
        self.names = ["p%d" % i for i in range(1000)]
        for name in self.names:
            rpc.rpc_sync(OWNER, make, (name, 256, True))
        references = [rpc.rpc_sync(OWNER, reference, (name,)) for name in self.names]
        self.distributed = DistributedOptimizer(torch.optim.SGD, references, lr=0.001)
        time_each(2, self.step)

    def step(self):
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync(OWNER, half_squares, (self.names,))
            dist_autograd.backward(context, [loss])
            self.distributed.step(context)

    def block(self):
        return statistics.median(time_each(5, self.step))

    def stop(self):
        self.distributed = None
        rpc.rpc_sync(OWNER, drop, (self.names,))


class Program20(CallEmpty):
    """Twenty operators on the owner in one call."""

    def __init__(self):
        self.inputs = [torch.full((32, 32), value) for value in (1.0, 0.5, 0.9)]

    def call(self):
        rpc.rpc_sync(OWNER, chain, (*self.inputs, 20))


class Optimizer:
    """PyTorch's functional optimizer over 16 million floats, one thread."""

    def __init__(self, optimizer, lr, tensors=1, elements=16_000_000, steps=3):
        self.optimizer, self.lr = optimizer, lr
        self.tensors, self.elements, self.steps = tensors, elements, steps

    def start(self):
        parameters = [torch.full((self.elements,), 0.5) for _ in range(self.tensors)]
        self.gradients = [torch.full((self.elements,), 1e-3) for _ in range(self.tensors)]
        self.functional = functional_optim_map[self.optimizer](parameters, lr=self.lr)
        self.step()

    def step(self):
        with torch.no_grad():
            self.functional.step(self.gradients)

    def block(self):
        return statistics.median(time_each(self.steps, self.step))

    def stop(self):
        self.functional = self.gradients = None


class LinearLoss(torch.nn.Module):
    """0.5 * sum of p * c. Every parameter has its own coefficients."""

    def __init__(self, tensors, elements):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.full((elements,), 0.5)) for _ in range(tensors)])
        generator = torch.Generator().manual_seed(11)
        self.coefficients = [
            torch.empty(elements).uniform_(-1e-3, 1e-3, generator=generator)
            for _ in range(tensors)
        ]

    def forward(self):
        return 0.5 * sum((p * c).sum() for p, c in zip(self.weights, self.coefficients))


class Ranks:
    """Processes of a Gloo group, of which this one is rank 0."""

    def __init__(self, ranks, runs):
        self.ranks, self.runs = ranks, runs

    def start(self):
        port = free_port()
        context = multiprocessing.get_context("spawn")
        self.pipes, self.others = [], []
        for rank in range(1, self.ranks):
            mine, theirs = context.Pipe()
            self.others.append(context.Process(target=help_rank,
                                               args=(self, rank, port, theirs), daemon=True))
            self.others[-1].start()
            self.pipes.append(mine)
        join_group(0, self.ranks, port)
        self.prepare()
        self.block()

    def __getstate__(self):
        return {"ranks": self.ranks, "runs": self.runs, **self.shape()}

    def shape(self):
        return {}

    def block(self):
        for pipe in self.pipes:
            pipe.send(self.runs)
        return statistics.median(time_each(self.runs, self.run))

    def stop(self):
        for pipe in self.pipes:
            pipe.send(0)
        for other in self.others:
            other.join()
        self.forget()
        torch.distributed.destroy_process_group()

    def forget(self):
        """Drops what prepare() has made, so that the next case has the memory."""


def join_group(rank, ranks, port):
    torch.distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=ranks)


def help_rank(case, rank, port, pipe):
    die_with_parent()
    torch.set_num_threads(1)
    join_group(rank, case.ranks, port)
    case.prepare()
    for runs in iter(pipe.recv, 0):
        for _ in range(runs):
            case.run()


class AllReduce(Ranks):
    """An all-reduce, out of place."""

    def __init__(self, ranks, elements, runs):
        super().__init__(ranks, runs)
        self.elements = elements

    def shape(self):
        return {"elements": self.elements}

    def prepare(self):
        self.input = torch.full((self.elements,), 1.0)

    def run(self):
        torch.distributed.all_reduce(self.input.clone())


class DdpStep(Ranks):
    """Forward and backward of DistributedDataParallel, whose gradients are averaged meanwhile, and
    a step of Adam on every rank."""

    def __init__(self, ranks, tensors, elements, runs):
        super().__init__(ranks, runs)
        self.tensors, self.elements = tensors, elements

    def shape(self):
        return {"tensors": self.tensors, "elements": self.elements}

    def prepare(self):
        self.replica = torch.nn.parallel.DistributedDataParallel(
            LinearLoss(self.tensors, self.elements))
        self.optimizer = torch.optim.Adam(self.replica.parameters(), lr=0.001)

    def run(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.replica().backward()
        self.optimizer.step()

    def forget(self):
        self.replica = self.optimizer = None


class ZeroStep(Ranks):
    """A step of ZeroRedundancyOptimizer with Adam over 16 parameters of a million floats."""

    def prepare(self):
        parameters = [torch.full((1_000_000,), 0.5, requires_grad=True) for _ in range(16)]
        for parameter in parameters:
            parameter.grad = torch.full((1_000_000,), 1e-3)
        self.optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.001)

    def run(self):
        self.optimizer.step()


TABLE_ROWS, TABLE_WIDTH, TABLE_IDS = 1_000_000, 64, 32_768


def skewed_ids():
    generator = torch.Generator().manual_seed(7)
    powers = torch.rand(TABLE_IDS, generator=generator, dtype=torch.float64)
    return (TABLE_ROWS ** powers).long().clamp_(0, TABLE_ROWS - 1)


class Embedding:
    """A lookup, backward and Adagrad's sparse step of a table on the owner."""

    def start(self):
        rpc.rpc_sync(OWNER, make_table, ("table", TABLE_ROWS, TABLE_WIDTH))
        references = [rpc.rpc_sync(OWNER, reference, ("table",))]
        self.distributed = DistributedOptimizer(torch.optim.Adagrad, references, lr=0.01)
        self.ids = skewed_ids()
        time_each(2, self.step)

    def step(self):
        with dist_autograd.context() as context:
            rows = rpc.rpc_sync(OWNER, embed, ("table", self.ids))
            dist_autograd.backward(context, [rows.sum() * 1e-3])
            self.distributed.step(context)

    def block(self):
        return statistics.median(time_each(3, self.step))

    def stop(self):
        self.distributed = self.ids = None
        rpc.rpc_sync(OWNER, drop, (["table"],))


class RowsLookup:
    """Rows of a table in this process, one thread."""

    def start(self):
        make_table("table", TABLE_ROWS, TABLE_WIDTH)
        self.ids = skewed_ids()
        self.step()

    def step(self):
        with torch.no_grad():
            embed("table", self.ids)

    def block(self):
        return statistics.median(time_each(5, self.step))

    def stop(self):
        drop(["table"])


class RowsUpdate(RowsLookup):
    """Adagrad's step of a table in this process by a sparse gradient, one thread."""

    def start(self):
        make_table("table", TABLE_ROWS, TABLE_WIDTH)
        table = STORE["table"]
        values = torch.full((TABLE_IDS, TABLE_WIDTH), 1e-3)
        table.grad = torch.sparse_coo_tensor(skewed_ids().unsqueeze(0), values, table.shape)
        self.optimizer = torch.optim.Adagrad([table], lr=0.01)
        self.step()

    def step(self):
        self.optimizer.step()


def group_cases():
    found = {}
    for ranks in (2, 4):
        for name, elements, runs in (("1KiB", 256, 200), ("1MiB", 256 << 10, 30),
                                     ("64MiB", 16 << 20, 4)):
            found["allreduce_%s_%d" % (name, ranks)] = AllReduce(ranks, elements, runs)
        found["ddp_step_%d" % ranks] = DdpStep(ranks, 16, 1_000_000, 3)
        found["ddp_small_%d" % ranks] = DdpStep(ranks, 1000, 256, 5)
        found["zero_step_%d" % ranks] = ZeroStep(ranks, 4)
    return found


def cases():
    million = 1_000_000
    return {
        **group_cases(),
        "call_empty": CallEmpty(),
        "call_parked": CallParked(),
        "call_64": Call64(),
        "pull_16MiB": Pull(16, 10),
        "pull_256MiB": Pull(256, 3),
        "step_sgd": Step(16, million, torch.optim.SGD, {"lr": 0.01}, 3),
        "step_adam": Step(16, million, torch.optim.Adam, {"lr": 0.001}, 3),
        "step_small": Step(1000, 256, torch.optim.SGD, {"lr": 0.01}, 5),
        "autograd_1000": Autograd1000(),
        "program_20": Program20(),
        "rows_lookup": RowsLookup(),
        "rows_update": RowsUpdate(),
        "embedding": Embedding(),
        "opt_sgd": Optimizer(torch.optim.SGD, 0.01),
        "opt_adagrad": Optimizer(torch.optim.Adagrad, 0.01),
        "opt_adam": Optimizer(torch.optim.Adam, 0.001),
        "opt_adamw": Optimizer(torch.optim.AdamW, 0.001),
        "opt_adamax": Optimizer(torch.optim.Adamax, 0.001),
        "opt_adadelta": Optimizer(torch.optim.Adadelta, 1.0),
        "opt_rmsprop": Optimizer(torch.optim.RMSprop, 0.01),
        "opt_rprop": Optimizer(torch.optim.Rprop, 0.01),
        "opt_small": Optimizer(torch.optim.Adam, 0.001, tensors=10_000, elements=100),
    }


def answer(known, words):
    """Serves one request. Returns seconds or None."""
    if len(words) != 2 or words[0] not in ("start", "block", "stop"):
        raise ValueError("not a request: %s" % " ".join(words))
    if words[1] not in known:
        raise ValueError("unknown case %s" % words[1])
    return getattr(known[words[1]], words[0])()


def serve(known, transport):
    print("ready torch-rpc-%s %s" % (torch.__version__, transport), flush=True)
    for line in sys.stdin:
        try:
            seconds = answer(known, line.split())
            print("ok" if seconds is None else "ok %.9g" % seconds, flush=True)
        except Exception as error:  # the other side must be told of every error
            print("error %s" % str(error).replace("\n", " "), flush=True)


def run_alone(known, arguments):
    for name, case in known.items():
        if arguments.only and name not in arguments.only:
            continue
        case.start()
        seconds = statistics.median(case.block() for _ in range(arguments.blocks))
        case.stop()
        print(json.dumps({"peer": "torch-rpc-%s" % torch.__version__, "case": name,
                          "transport": arguments.transport, "seconds": seconds}), flush=True)


# ---- both


def join(rank, port, transport):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, rpc_timeout=300,
                                              **TRANSPORTS[transport])
    rpc.init_rpc("trainer0" if rank == 0 else OWNER, rank=rank, world_size=2,
                 rpc_backend_options=options)


def die_with_parent():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the trainer, however that ends
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def own(port, transport):
    die_with_parent()
    join(1, port, transport)
    rpc.shutdown()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--transport", choices=sorted(TRANSPORTS), default="shm")
    parser.add_argument("--only", action="append", choices=sorted(cases()))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    port = free_port()
    owner = multiprocessing.get_context("spawn").Process(
        target=own, args=(port, arguments.transport), daemon=True)
    owner.start()
    join(0, port, arguments.transport)
    if arguments.serve:
        serve(cases(), arguments.transport)
    else:
        run_alone(cases(), arguments)
    rpc.shutdown()
    owner.join()


if __name__ == "__main__":
    main()
