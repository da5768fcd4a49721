#!/usr/bin/python3
"""Evaluates graphs (graph_text.h) by torch.distributed.autograd.

Reads the graphs from standard input, and runs the workers as up to three processes. For each graph,
writes a line "graph" and then the gradients of its leaves and weights.
"""

import os
import sys
import tempfile

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing

WORKERS = 3
DTYPES = {"f32": torch.float32, "f64": torch.float64}

# The weight of the worker that runs in this process.
weight = None


def worker_name(number):
    return "worker%d" % number


def set_weight(tensor):
    global weight
    weight = tensor.clone().requires_grad_()


def fetch():
    return weight


def weight_gradient(context):
    return dist_autograd.get_gradients(context).get(weight)


def run_operator(op, a, b):
    if op == "mul":
        return a * b
    if op == "add":
        return (a + b) / 2
    if op == "sub":
        return (a - b) / 2
    if op == "matmul":
        return a @ b / a.shape[0]
    if op == "tanh":
        return torch.tanh(a + b)
    if op == "turn":
        return (a.t() + b) / 2
    if op == "first":
        return a
    raise ValueError("no operator " + op)


def visit(steps, a, b):
    _, op, flags = steps[0]
    r = run_operator(op, a, b)
    if "w" in flags:
        r = r * weight
    if len(steps) > 1:
        x, y = call(steps[1:], r, a)
        if "u" not in flags:
            r = ((x + r) / 2 + y) / 2
    return r, a / 2


def call(steps, a, b):
    return rpc.rpc_sync(worker_name(steps[0][0]), visit, args=(steps, a, b))


class Graph:
    def __init__(self, header):
        self.dtype = DTYPES[header[1]]
        self.workers = int(header[2])
        self.extent = int(header[3])
        self.weights = []
        self.lines = []

    def matrix(self, words):
        numbers = torch.tensor([float(word) for word in words], dtype=torch.float64)
        return numbers.reshape(self.extent, self.extent).to(self.dtype)


def read_graphs(lines):
    graphs = []
    for words in (line.split() for line in lines):
        if words[0] == "graph":
            graphs.append(Graph(words))
        elif words[0] == "weight":
            graphs[-1].weights.append(graphs[-1].matrix(words[1:]))
        else:
            graphs[-1].lines.append(words)
    return graphs


def parse_steps(words):
    """Parses words like [":", "1", "mul", "w", ":", …]."""
    return [(int(words[i + 1]), words[i + 2], words[i + 3]) for i in range(0, len(words), 4)]


def forward(graph):
    variables, roots = [], []
    for words in graph.lines:
        if words[0] in ("leaf", "constant"):
            variables.append(graph.matrix(words[1:]).requires_grad_(words[0] == "leaf"))
        elif words[0] == "op":
            variables.append(
                run_operator(words[1], variables[int(words[2])], variables[int(words[3])]))
        elif words[0] == "fetch":
            variables.append(rpc.rpc_sync(worker_name(int(words[1])), fetch))
        elif words[0] == "call":
            variables.extend(
                call(parse_steps(words[3:]), variables[int(words[1])], variables[int(words[2])]))
        elif words[0] == "root":
            roots.append(variables[int(words[1])].sum())
    return variables, [root for root in roots if root.requires_grad]


def write_gradient(name, number, gradient):
    if gradient is not None:
        numbers = gradient.to(torch.float64).flatten().tolist()
        print(name, number, *("%.17g" % x for x in numbers))


def run(graph):
    for number in range(graph.workers):
        rpc.rpc_sync(worker_name(number), set_weight, args=(graph.weights[number],))
    print("graph")
    with dist_autograd.context() as context:
        variables, roots = forward(graph)
        if not roots:
            return
        dist_autograd.backward(context, roots)
        gradients = dist_autograd.get_gradients(context)
        for number, variable in enumerate(variables):
            if variable.is_leaf:
                write_gradient("leaf", number, gradients.get(variable))
        for number in range(graph.workers):
            write_gradient(
                "weight", number,
                rpc.rpc_sync(worker_name(number), weight_gradient, args=(context,)))


def serve(rank, rendezvous, graphs):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method="file://" + rendezvous, rpc_timeout=60, _transports=["uv"])
    rpc.init_rpc(worker_name(rank), rank=rank, world_size=WORKERS, rpc_backend_options=options)
    if rank == 0:
        for graph in read_graphs(graphs):
            run(graph)
        sys.stdout.flush()
    rpc.shutdown()


def main():
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    graphs = sys.stdin.read().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            serve, args=(os.path.join(folder, "rendezvous"), graphs), nprocs=WORKERS)


if __name__ == "__main__":
    main()
