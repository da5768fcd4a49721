#pragma once

// Random graphs over several workers, as text that any implementation can read and evaluate:
//
//   graph f64 3 2           dtype; workers, of which 0 is the trainer; n of the n x n matrices
//   weight 0.25 -0.5 …      of worker 0, then of worker 1, …: n * n numbers each
//   leaf 0.1 0.2 …          of the trainer. It and the lines below make variables 0, 1, …
//   constant 0.1 0.2 …
//   op mul 0 1              on the trainer
//   fetch 2                 the weight of worker 2, by a call
//   call 0 1 : 1 mul w : 2 tanh - : 1 add u
//   root 5                  the sum of its elements is a root of backward; no root if it requires
//                           no grad
//
// A call makes two variables. Its steps run each on its worker, called by the one before:
//
//   visit(steps, a, b): r = op(a, b) of the first step
//                       flag w: r = r * the worker's weight
//                       if there are more steps: x, y = visit(the others, r, a) there
//                                                r = (x + r) / 2, and then (r + y) / 2
//                                                flag u: both are left unused
//                       returns r and a / 2
//
// Operators, such that numbers stay small: mul: a * b, add: (a + b) / 2, sub: (a - b) / 2,
// matmul: (a x b) / n, tanh: tanh(a + b), turn: (a transposed + b) / 2, first: a alone.

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"

namespace psd::dist_autograd {

struct Step {
  int worker = 0;
  std::string op;
  bool weight = false;
  bool unused = false;  // what the next step returns
};

struct Line {
  enum class Kind { kLeaf, kConstant, kOp, kFetch, kCall };
  Kind kind = Kind::kLeaf;
  std::vector<double> numbers;  // leaf, constant
  int a = 0, b = 0;             // op, call: variables
  std::vector<Step> steps;      // op (one, its worker is not used), fetch (its worker), call
};

struct Graph {
  DType dtype = DType::kF64;
  int workers = 0;
  int extent = 0;  // n
  std::vector<std::vector<double>> weights;
  std::vector<Line> lines;
  std::vector<int> roots;
};

struct GraphOptions {
  DType dtype = DType::kF64;
  int workers = 4;  // at least 2
  // Every result, argument and variable counts in some root: what fast mode asks for.
  bool all_used = false;
};
Graph RandomGraph(uint64_t seed, const GraphOptions& options);

std::string ToText(const Graph& graph);
std::string ToText(const std::vector<Step>& steps);

}  // namespace psd::dist_autograd
