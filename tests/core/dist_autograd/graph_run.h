#pragma once

// Evaluates the graphs of graph_text.h: on workers of a fake network, and without any.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dist_autograd/backward_options.h"
#include "tests/core/dist_autograd/graph_text.h"

namespace psd::dist_autograd {

// "leaf 0" (numbered as variables), "weight 2": their gradients. What has none is absent.
using GradientTable = std::map<std::string, std::vector<double>>;

// By local autograd, as if there were one worker only.
absl::StatusOr<GradientTable> RunLocally(const Graph& graph);

struct RunOptions {
  uint64_t seed = 1;  // of the order in which messages arrive
  double loss = 0;    // share of messages that are lost, and sent again
  BackwardMode mode = BackwardMode::kExact;
  int passes = 1;  // all but the last retain the graph
};
// Errors: of any call and of backward; INTERNAL for a worker that is not at rest in the end.
absl::StatusOr<GradientTable> RunDistributed(const Graph& graph, const RunOptions& options);

// What differs, "" if nothing: one has a gradient where the other has none, or numbers are further
// apart than `tolerance` times the largest of that gradient (or 1).
std::string Difference(const GradientTable& is, const GradientTable& expected, double tolerance);

}  // namespace psd::dist_autograd
