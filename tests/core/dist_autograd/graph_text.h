#pragma once

// Random graphs over several workers, as text that any implementation can read and evaluate:
//
//   graph f64 3 2           the dtype, the number of workers (0 is the trainer), and n: every
//                           tensor is an n x n matrix
//   weight 0.25 -0.5 …      n * n numbers; the first such line is for worker 0, the next for 1, …
//   leaf 0.1 0.2 …          a leaf of the trainer. This line and those below make variables 0, 1, …
//   constant 0.1 0.2 …
//   op mul 0 1              an operator on the trainer
//   fetch 2                 a call that returns the weight of worker 2
//   call 0 1 : 1 mul w : 2 tanh - : 1 add u
//   root 5                  the sum of the variable's elements is a root of backward, unless it
//                           requires no grad
//
// A call makes two variables. Each step runs on its own worker, which the worker of the step before
// calls:
//
//   visit(steps, a, b): r = op(a, b), by the operator of the first step
//                       with flag w: r = r * the weight of its worker
//                       if there are more steps: x, y = visit(the other steps, r, a)
//                                                r = (x + r) / 2, and then r = (r + y) / 2,
//                                                but with flag u: x and y are not used
//                       returns r and a / 2
//
// The operators keep the numbers small. mul: a * b, add: (a + b) / 2, sub: (a - b) / 2,
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
  bool unused = false;  // the results of the next step are not used
};

struct Line {
  enum class Kind { kLeaf, kConstant, kOp, kFetch, kCall };
  Kind kind = Kind::kLeaf;
  std::vector<double> numbers;  // for leaf and constant
  int a = 0, b = 0;             // variables, for op and call
  // One step for op, which ignores its worker; one for fetch, which uses only its worker; and one
  // or more for call.
  std::vector<Step> steps;
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
  // Every result, argument and variable contributes to some root, as fast mode requires.
  bool all_used = false;
};
Graph RandomGraph(uint64_t seed, const GraphOptions& options);

std::string ToText(const Graph& graph);
std::string ToText(const std::vector<Step>& steps);

}  // namespace psd::dist_autograd
