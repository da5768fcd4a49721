#!/usr/bin/python3
"""Writes golden_rows.txt: steps of the row optimizers by sparse gradients with repeated rows.

sgd, adagrad and sparse_adam are PyTorch's. PyTorch has no rowwise_adagrad, so its published formula
is computed with numpy: s += the mean of g^2 over the row, w -= lr g / (sqrt(s) + eps). Its lr
decays as that of PyTorch's Adagrad.

Run it in this folder with Debian's python3-torch: ./make_golden_rows.py > golden_rows.txt. The
values in the repository are from torch 1.13.

Each case starts with a line "case TYPE DTYPE ROWSxWIDTH option=value ..." and a line "w" with the
initial table. For each step follow a line "i" with the rows of its entries (perhaps none), a line
"g" with their gradients and a line "w" with the table after the step. Initial elements and
gradients are in units of 1/64.
"""
import random

import numpy as np
import torch

from make_golden import line, products, torch_options

STEPS = 6
SHAPES = ((5, 3), (4, 1), (7, 4), (3, 9))
TORCH = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
         "sparse_adam": torch.optim.SparseAdam}


class RowwiseAdagrad:
    def __init__(self, parameters, lr=0.01, lr_decay=0, initial_accumulator_value=0, eps=1e-10,
                 maximize=False):
        (self.parameter,) = parameters
        self.lr, self.lr_decay, self.eps, self.maximize = lr, lr_decay, eps, maximize
        self.table = self.parameter.detach().numpy()
        self.sum = np.full(len(self.table), initial_accumulator_value, self.table.dtype)
        self.steps = 0

    def step(self):
        gradient = self.parameter.grad.coalesce()
        rows, g = gradient.indices()[0].numpy(), gradient.values().numpy()
        g = -g if self.maximize else g
        rate = self.lr / (1 + self.steps * self.lr_decay)
        self.sum[rows] += np.mean(g * g, axis=1)
        self.table[rows] -= rate * g / (np.sqrt(self.sum[rows]) + self.eps)[:, None]
        self.steps += 1


def case(numbers, kind, dtype, shape, options):
    print("case", kind, dtype, "x".join(map(str, shape)),
          *("%s=%.17g" % item for item in options.items()))
    form = "%.9g" if dtype == "f32" else "%.17g"
    rows, width = shape
    start = [numbers.choice((-1, 1)) * numbers.randrange(8, 64) for _ in range(rows * width)]
    table = (torch.tensor(start, dtype=torch.float64) / 64).reshape(shape)
    table = table.to(torch.float32 if dtype == "f32" else torch.float64).requires_grad_()
    make = TORCH.get(kind, RowwiseAdagrad)
    optimizer = make([table], **torch_options(kind, options))
    line("w", start, "%d")
    # A step without entries. PyTorch's adagrad and sparse_adam fail on it.
    without = None if kind in ("adagrad", "sparse_adam") else numbers.choice((None, 2, 3))
    for step in range(STEPS):
        entries = 0 if step == without else numbers.randrange(1, rows + 2)
        # Repeated rows are likely, and so are rows that no step touches.
        chosen = [numbers.randrange((rows + 2) // 2) + step % 2 for _ in range(entries)]
        draw = [numbers.choice((-1, 1)) * numbers.randrange(32, 128)
                for _ in range(entries * width)]
        values = (torch.tensor(draw, dtype=table.dtype) / 64).reshape(entries, width)
        indices = torch.tensor(chosen, dtype=torch.int64).reshape(1, entries)
        table.grad = torch.sparse_coo_tensor(indices, values, shape)
        line("i", chosen, "%d")
        line("g", draw, "%d")
        optimizer.step()
        line("w", table.detach().flatten().tolist(), form)


def settings():
    yield from products("sgd", lr=(0.1,), maximize=(0, 1))
    for momentum, dampening, nesterov in ((0.9, 0, 0), (0.9, 0.3, 0), (0.5, 0, 1), (1, 0, 1)):
        yield from products("sgd", lr=(0.1,), maximize=(0, 1), momentum=(momentum,),
                            dampening=(dampening,), nesterov=(nesterov,))
    for kind in ("adagrad", "rowwise_adagrad"):
        yield kind, {}
        yield from products(kind, lr=(0.1,), lr_decay=(0, 0.5),
                            initial_accumulator_value=(0, 0.25), maximize=(0, 1))
        yield kind, {"eps": 0.1}
    yield "sparse_adam", {}
    yield from products("sparse_adam", lr=(0.05,), beta1=(0.9, 0.5), beta2=(0.999, 0.8),
                        maximize=(0, 1))
    yield "sparse_adam", {"eps": 0.1, "beta1": 0, "beta2": 0}


def main():
    torch.set_num_threads(1)
    for number, (kind, options) in enumerate(settings()):
        for dtype in ("f32", "f64"):
            case(random.Random(number), kind, dtype, SHAPES[number % len(SHAPES)], options)


if __name__ == "__main__":
    main()
