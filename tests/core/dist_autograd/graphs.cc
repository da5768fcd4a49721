// graphs write SEED COUNT: writes random graphs (graph_text.h) to standard output, f64 and f32 in
//   turn, over two and three workers.
// graphs check SEED COUNT: evaluates the same graphs on psd's workers in both modes, and compares
//   the gradients with those on standard input. There, a line "graph" begins each graph, and lines
//   like "leaf 0 0.25 …" and "weight 1 0.5 …" follow. If gradients differ, prints the graph and
//   exits with status 1.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/dist_autograd/backward_options.h"
#include "core/tensor/dtype.h"
#include "tests/core/dist_autograd/graph_run.h"
#include "tests/core/dist_autograd/graph_text.h"

namespace psd::dist_autograd {
namespace {

Graph GraphOf(uint64_t seed) {
  GraphOptions options;
  options.dtype = seed % 2 == 0 ? DType::kF64 : DType::kF32;
  options.workers = 2 + static_cast<int>(seed % 3 != 0);
  options.all_used = true;
  return RandomGraph(seed, options);
}

// Reads all gradients on standard input, by graph.
std::vector<GradientTable> ReadTables() {
  std::vector<GradientTable> tables;
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    if (words[0] == "graph") {
      tables.emplace_back();
      continue;
    }
    if (tables.empty() || words.size() < 2) continue;
    std::vector<double>& numbers = tables.back()[absl::StrCat(words[0], " ", words[1])];
    for (size_t i = 2; i < words.size(); ++i) {
      numbers.push_back(0);
      if (!absl::SimpleAtod(words[i], &numbers.back())) std::cout << "no number: " << line << "\n";
    }
  }
  return tables;
}

// Describes how psd's gradients differ from the expected ones, or returns "" if they agree.
std::string Compare(uint64_t seed, const GradientTable& expected) {
  const Graph graph = GraphOf(seed);
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    RunOptions options;
    options.seed = seed;
    options.loss = 0.1;
    options.mode = mode;
    absl::StatusOr<GradientTable> is = RunDistributed(graph, options);
    const double tolerance = graph.dtype == DType::kF64 ? 1e-12 : 1e-6;
    const std::string differs =
        is.ok() ? Difference(*is, expected, tolerance) : std::string(is.status().message());
    if (differs.empty()) continue;
    return absl::StrCat("seed ", seed,
                        mode == BackwardMode::kExact ? ", exact: " : ", fast: ", differs, "\n",
                        ToText(graph));
  }
  return "";
}

int Check(uint64_t seed, uint64_t count) {
  const std::vector<GradientTable> tables = ReadTables();
  if (tables.size() != count) {
    std::cout << tables.size() << " graphs of " << count << " were evaluated\n";
    return 1;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const std::string differs = Compare(seed + i, tables[i]);
    if (differs.empty()) continue;
    std::cout << differs;
    return 1;
  }
  std::cout << count << " graphs from seed " << seed << " have equal gradients\n";
  return 0;
}

int Main(int argc, char** argv) {
  uint64_t seed = 0, count = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[2], &seed) || !absl::SimpleAtoi(argv[3], &count)) {
    std::cerr << "usage: graphs write|check SEED COUNT\n";
    return 2;
  }
  if (std::string(argv[1]) == "check") return Check(seed, count);
  for (uint64_t i = 0; i < count; ++i) std::cout << ToText(GraphOf(seed + i));
  return 0;
}

}  // namespace
}  // namespace psd::dist_autograd

int main(int argc, char** argv) {
  return psd::dist_autograd::Main(argc, argv);
}
