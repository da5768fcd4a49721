#include "tests/core/optim/dense/golden_cases.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/optim/options/optimizer_registry.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {
namespace {

constexpr double kUnit = 1.0 / 64;  // the unit of initial parameters and gradients

void ParseCase(std::istringstream& words, GoldenCase& golden) {
  std::string dtype, shape;
  words >> golden.spec.type >> dtype >> shape;
  golden.dtype = dtype == "f32" ? DType::kF32 : DType::kF64;
  for (absl::string_view extent : absl::StrSplit(shape, 'x'))
    golden.shape.push_back(std::stoll(std::string(extent)));
  for (std::string option; words >> option;) {
    const size_t equals = option.find('=');
    golden.spec.options[option.substr(0, equals)] = std::stod(option.substr(equals + 1));
  }
}

std::vector<double> ParseNumbers(std::istringstream& words, double unit) {
  std::vector<double> numbers;
  for (double number; words >> number;) numbers.push_back(number * unit);
  return numbers;
}

// An aligned array of T.
template <typename T>
class Array {
 public:
  explicit Array(size_t size, double value = 0)
      : block_(*NewHeapAllocator()->Allocate(size * sizeof(T))) {
    std::fill(data(), data() + size, static_cast<T>(value));
  }
  T* data() { return reinterpret_cast<T*>(block_->data()); }

 private:
  std::shared_ptr<Block> block_;
};

template <typename T>
absl::Status ReplayAs(const GoldenCase& golden) {
  PSD_ASSIGN_OR_RETURN(auto optimizer, OptimizerRegistry::Builtin().Create(golden.spec));
  const size_t size = golden.initial.size();
  Array<T> parameter(size), next(size), gradient(size);
  std::copy(golden.initial.begin(), golden.initial.end(), parameter.data());
  std::vector<Array<T>> state;
  kernels::OptimArrays arrays;
  for (const StateSlot& slot : optimizer->Slots(golden.dtype)) {
    state.emplace_back(size, slot.initial);
    arrays.state[state.size() - 1] = state.back().data();
  }
  arrays.gradient = gradient.data();
  arrays.size = size;
  kernels::OptimBatch batch;
  batch.type = OptimTypeOf(golden.dtype);
  batch.step = 0;
  batch.arrays = &arrays;
  batch.count = 1;
  for (size_t step = 0; step < golden.steps.size(); ++step) {
    const GoldenStep& each = golden.steps[step];
    if (!each.gradient.empty()) {
      std::copy(each.gradient.begin(), each.gradient.end(), gradient.data());
      arrays.parameter = parameter.data();
      arrays.next = next.data();
      ++batch.step;
      optimizer->Apply(/*device=*/nullptr, batch);
      std::swap(parameter, next);
      if (!std::equal(each.gradient.begin(), each.gradient.end(), gradient.data()))
        return absl::InternalError("the gradient was modified");
    }
    const std::vector<double> got(parameter.data(), parameter.data() + size);
    PSD_RETURN_IF_ERROR(Compare(golden.dtype, got, each.after, step + 1));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<GoldenCase> ReadGoldenCases(std::istream& in) {
  std::vector<GoldenCase> cases;
  bool rows_given = false;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string tag;
    words >> tag;
    if (tag == "case") {
      cases.emplace_back().line = line;
      ParseCase(words, cases.back());
    } else if (tag == "i") {
      cases.back().steps.emplace_back().rows = ParseNumbers(words, 1);
      rows_given = true;
    } else if (tag == "g") {
      if (!rows_given) cases.back().steps.emplace_back();
      cases.back().steps.back().gradient = ParseNumbers(words, kUnit);
      rows_given = false;
    } else if (cases.back().initial.empty()) {
      cases.back().initial = ParseNumbers(words, kUnit);
    } else {
      cases.back().steps.back().after = ParseNumbers(words, 1);
    }
  }
  return cases;
}

absl::Status Compare(DType dtype, absl::Span<const double> got, absl::Span<const double> want,
                     size_t step) {
  const double tolerance = dtype == DType::kF32 ? 1e-6 : 1e-12;
  if (got.size() != want.size()) {
    return absl::InternalError(
        absl::StrFormat("%d elements after step %d, not %d", got.size(), step, want.size()));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(got[i] - want[i]) <= tolerance * std::max(1.0, std::abs(want[i]))) continue;
    return absl::InternalError(
        absl::StrFormat("element %d after step %d is %.17g, not %.17g", i, step, got[i], want[i]));
  }
  return absl::OkStatus();
}

absl::Status Replay(const GoldenCase& golden) {
  return Annotate(golden.dtype == DType::kF32 ? ReplayAs<float>(golden) : ReplayAs<double>(golden),
                  golden.line);
}

}  // namespace psd::optim
