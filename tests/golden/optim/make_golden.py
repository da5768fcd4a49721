#!/usr/bin/python3
"""Writes golden.txt: five steps of SGD, Adam and AdamW under many settings.

A plain float64 implementation, one element at a time, in the order of operations of PyTorch's own
optimizers and independent of psd's kernels. Run from this folder: ./make_golden.py > golden.txt

Format, by lines: "case TYPE option=value ...", then "w" with the initial parameter, then for each
step "g" with the gradient ("g -" for a step without one) and "w" with the parameter after it.
"""
import itertools
import math
import random

STEPS = 5
ELEMENTS = 6
DEFAULTS = {
    "sgd": dict(lr=0.01, momentum=0, dampening=0, weight_decay=0, nesterov=0, maximize=0),
    "adam": dict(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0, amsgrad=0,
                 maximize=0),
}
DEFAULTS["adamw"] = dict(DEFAULTS["adam"], weight_decay=0.01)


def sgd(w, g, state, o):
    g = -g if o["maximize"] else g
    if o["weight_decay"]:
        g = g + o["weight_decay"] * w
    if o["momentum"]:
        if "buffer" not in state:
            state["buffer"] = g
        else:
            state["buffer"] = state["buffer"] * o["momentum"] + (1 - o["dampening"]) * g
        g = g + o["momentum"] * state["buffer"] if o["nesterov"] else state["buffer"]
    return w - o["lr"] * g


def adam_like(w, g, state, o, decoupled):
    state["t"] = state.get("t", 0) + 1
    g = -g if o["maximize"] else g
    if decoupled:
        w = w * (1 - o["lr"] * o["weight_decay"])
    elif o["weight_decay"]:
        g = g + o["weight_decay"] * w
    b1, b2 = o["beta1"], o["beta2"]
    state["m"] = m = state.get("m", 0.0) * b1 + (1 - b1) * g
    state["v"] = v = state.get("v", 0.0) * b2 + (1 - b2) * g * g
    if o["amsgrad"]:
        state["x"] = v = max(state.get("x", 0.0), v)
    denominator = math.sqrt(v) / math.sqrt(1 - b2 ** state["t"]) + o["eps"]
    return w - o["lr"] / (1 - b1 ** state["t"]) * (m / denominator)


UPDATES = {
    "sgd": sgd,
    "adam": lambda w, g, s, o: adam_like(w, g, s, o, False),
    "adamw": lambda w, g, s, o: adam_like(w, g, s, o, True),
}


def line(tag, values):
    print(tag, *("%.17g" % v for v in values))


def case(number, kind, options):
    # Sixty-fourths: exact in float32 too. No zeros: Adam's quotient is ill-conditioned there.
    numbers = random.Random(number)
    draw = lambda: numbers.choice([-1, 1]) * numbers.randrange(8, 128) / 64
    print("case", kind, *("%s=%.17g" % item for item in options.items()))
    full = dict(DEFAULTS[kind], **options)
    w = [draw() for _ in range(ELEMENTS)]
    states = [{} for _ in w]
    line("w", w)
    for step in range(STEPS):
        if number % 3 == 0 and step == 2:
            print("g -")
        else:
            g = [draw() for _ in w]
            line("g", g)
            w = [UPDATES[kind](*each, full) for each in zip(w, g, states)]
        line("w", w)


def settings():
    for decay, maximize in itertools.product((0, 0.1), (0, 1)):
        base = dict(lr=0.1, weight_decay=decay, maximize=maximize)
        yield "sgd", base
        for momentum, dampening, nesterov in ((0.9, 0, 0), (0.9, 0.3, 0), (0.5, 0, 1), (1, 0, 1)):
            yield "sgd", dict(base, momentum=momentum, dampening=dampening, nesterov=nesterov)
    yield "sgd", {}
    for kind, decay, amsgrad, maximize in itertools.product(
            ("adam", "adamw"), (0, 0.05), (0, 1), (0, 1)):
        yield kind, dict(lr=0.05, weight_decay=decay, amsgrad=amsgrad, maximize=maximize)
    for kind in ("adam", "adamw"):
        yield kind, {}
        yield kind, dict(beta1=0.5, beta2=0.9, eps=0.001, lr=0.2)
        yield kind, dict(beta1=0, beta2=0, lr=0.01)


for number, (kind, options) in enumerate(settings()):
    case(number, kind, options)
