#pragma once

// Evaluates the graphs of graph_text.h on workers of a fake network, or by local autograd.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dist_autograd/backward_options.h"
#include "tests/core/dist_autograd/graph_text.h"

namespace psd::dist_autograd {

// Gradients by name: "leaf N" for the leaf that is variable N, "weight N" for the weight of worker
// N. Leaves and weights without a gradient are absent.
using GradientTable = std::map<std::string, std::vector<double>>;

// Evaluates the graph by local autograd, as if there were only one worker.
absl::StatusOr<GradientTable> RunLocally(const Graph& graph);

struct RunOptions {
  uint64_t seed = 1;  // decides the order in which messages arrive
  double loss = 0;    // the share of messages that are lost and sent again
  BackwardMode mode = BackwardMode::kExact;
  int passes = 1;  // all passes but the last one retain the graph
};
// Errors: those of calls and of backward, and INTERNAL if a worker is not at rest in the end.
absl::StatusOr<GradientTable> RunDistributed(const Graph& graph, const RunOptions& options);

// Describes the first difference, or returns "" if there is none. Tables differ where only one has
// a gradient, and where numbers are further apart than `tolerance` times the largest absolute
// number of the expected gradient (or times 1, if that is larger).
std::string Difference(const GradientTable& is, const GradientTable& expected, double tolerance);

}  // namespace psd::dist_autograd
