#!/usr/bin/python3
"""Writes golden.txt: steps of all eight dense optimizers of PyTorch under many settings.

Run it in this folder with Debian's python3-torch: ./make_golden.py > golden.txt. The values in the
repository are from torch 1.13. With "--random SEED COUNT", COUNT settings are drawn at random.

Each case starts with a line "case TYPE DTYPE SHAPE option=value ..." and a line "w" with the
initial parameter. For each step follow a line "g" with the gradient ("g -" for a step without one)
and a line "w" with the parameter after the step. Initial parameters and gradients are in units of
1/64, so that they are exact in every type.
"""
import itertools
import random
import sys

import torch

STEPS = 5
SHAPES = ((5,), (2, 3), (1,), (3, 1, 2))
CLASSES = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
}
# The defaults of psd where PyTorch has another one or none.
DEFAULTS = {"sgd": {"lr": 0.01}, "adamax": {"lr": 0.001}}
# The names that psd gives to the parts of PyTorch's tuples.
PAIRS = {
    "betas": (("beta1", 0.9), ("beta2", 0.999)),
    "etas": (("etaminus", 0.5), ("etaplus", 1.2)),
    "step_sizes": (("step_size_min", 1e-6), ("step_size_max", 50)),
}
FLAGS = ("nesterov", "maximize", "amsgrad", "centered")


def torch_options(kind, options):
    given = dict(DEFAULTS.get(kind, {}), **options)
    for pair, parts in PAIRS.items():
        if any(name in given for name, _ in parts):
            given[pair] = tuple(given.pop(name, default) for name, default in parts)
    for flag in FLAGS:
        if flag in given:
            given[flag] = bool(given[flag])
    return given


def line(tag, values, form):
    print(tag, *(form % v for v in values))


def case(numbers, kind, dtype, shape, options):
    """Writes a case. `numbers` is a random generator; both dtypes get one in the same state."""
    print("case", kind, dtype, "x".join(map(str, shape)),
          *("%s=%.17g" % item for item in options.items()))
    form = "%.9g" if dtype == "f32" else "%.17g"
    elements = torch.Size(shape).numel()
    # Gradients are larger than the weight decay that is added to them. If the two canceled out, the
    # quotient of most optimizers would be ill-conditioned.
    start = [numbers.choice((-1, 1)) * numbers.randrange(8, 64) for _ in range(elements)]
    parameter = (torch.tensor(start, dtype=torch.float64) / 64).reshape(shape)
    parameter = parameter.to(torch.float32 if dtype == "f32" else torch.float64)
    parameter.requires_grad_()
    optimizer = CLASSES[kind]([parameter], **torch_options(kind, options))
    line("w", start, "%d")
    skipped = numbers.choice((None, None, 0, 2))
    for step in range(STEPS):
        draw = [numbers.choice((-1, 1)) * numbers.randrange(32, 128) for _ in range(elements)]
        if kind in ("rprop", "sgd", "adagrad") and numbers.randrange(4) == 0:
            draw[0] = 0
        if step == skipped:
            parameter.grad = None
            print("g -")
        else:
            parameter.grad = (torch.tensor(draw, dtype=parameter.dtype) / 64).reshape(shape)
            line("g", draw, "%d")
        optimizer.step()
        line("w", parameter.detach().flatten().tolist(), form)


def products(kind, **choices):
    for values in itertools.product(*choices.values()):
        yield kind, dict(zip(choices, values))


def settings():
    for kind in CLASSES:
        yield kind, {}
    yield from products("sgd", lr=(0.1,), weight_decay=(0, 0.1), maximize=(0, 1))
    for momentum, dampening, nesterov in ((0.9, 0, 0), (0.9, 0.3, 0), (0.5, 0, 1), (1, 0, 1)):
        yield from products("sgd", lr=(0.1,), weight_decay=(0, 0.1), maximize=(0, 1),
                            momentum=(momentum,), dampening=(dampening,), nesterov=(nesterov,))
    yield from products("adagrad", lr=(0.1,), lr_decay=(0, 0.5), weight_decay=(0, 0.1),
                        initial_accumulator_value=(0, 0.25), maximize=(0, 1))
    yield "adagrad", {"eps": 0.1}
    for kind in ("adam", "adamw"):
        yield from products(kind, lr=(0.05,), weight_decay=(0, 0.05), amsgrad=(0, 1),
                            maximize=(0, 1))
        yield kind, {"beta1": 0.5, "beta2": 0.9, "eps": 0.001, "lr": 0.2}
        yield kind, {"beta1": 0, "beta2": 0, "lr": 0.01}
        yield kind, {"beta1": 0, "beta2": 0.5, "amsgrad": 1}
    yield from products("adamax", lr=(0.002, 0.1), weight_decay=(0, 0.1), maximize=(0, 1),
                        eps=(1e-8, 0.1))
    yield "adamax", {"beta1": 0, "beta2": 0.5}
    yield from products("adadelta", lr=(1, 0.3), rho=(0.9, 0.5), weight_decay=(0, 0.1),
                        maximize=(0, 1))
    yield "adadelta", {"eps": 0.01, "rho": 0}
    yield from products("rmsprop", alpha=(0.99, 0.6), weight_decay=(0, 0.1), momentum=(0, 0.9),
                        centered=(0, 1), maximize=(0, 1))
    yield "rmsprop", {"eps": 0.1, "lr": 0.1}
    yield from products("rprop", lr=(0.01, 0.2), maximize=(0, 1), etaminus=(0.5, 0.3),
                        etaplus=(1.2, 2))
    yield "rprop", {"lr": 0.5, "step_size_min": 0.1, "step_size_max": 0.4}
    yield "rprop", {"lr": 0.01, "step_size_min": 0.1, "step_size_max": 0.12}


def random_settings(numbers, count):
    share = lambda: numbers.choice((0, 0.5, 0.9, 0.99, numbers.random()))
    small = lambda: numbers.choice((0, 0.01, 0.1 * numbers.random()))
    flag = lambda: numbers.randrange(2)
    eps = lambda: 10 ** numbers.uniform(-8, -1)
    for _ in range(count):
        kind = numbers.choice(list(CLASSES))
        options = {"lr": 10 ** numbers.uniform(-4, -0.5), "maximize": flag()}
        if kind == "rprop":
            options.update(etaminus=numbers.uniform(0.1, 0.9), etaplus=numbers.uniform(1.1, 3),
                           step_size_min=1e-4 * numbers.random(), step_size_max=numbers.random())
        else:
            options["weight_decay"] = small()
        if kind == "sgd":
            options.update(momentum=share(), dampening=share())
            if options["momentum"] > 0 and flag():
                options.update(nesterov=1, dampening=0)
        elif kind != "rprop":
            options["eps"] = eps()
        if kind in ("adam", "adamw", "adamax"):
            options.update(beta1=share(), beta2=share())
        if kind in ("adam", "adamw"):
            options["amsgrad"] = flag()
        if kind == "adagrad":
            options.update(lr_decay=small(), initial_accumulator_value=small())
        if kind == "adadelta":
            options["rho"] = share()
        if kind == "rmsprop":
            # If it is centered and remembers nothing, the variance is 0 except for rounding.
            options.update(alpha=numbers.choice((0.6, 0.9, 0.99)), momentum=share(),
                           centered=flag())
        yield kind, options


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--random"]:
        seed, chosen = int(sys.argv[2]), int(sys.argv[3])
        drawn = random_settings(random.Random(seed), chosen)
    else:
        seed, drawn = 0, settings()
    for number, (kind, options) in enumerate(drawn):
        for dtype in ("f32", "f64"):
            case(random.Random(seed * 100003 + number), kind, dtype,
                 SHAPES[number % len(SHAPES)], options)


if __name__ == "__main__":
    main()
