#include "tests/core/optim/dense/golden_cases.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/optim/options/optimizer_registry.h"

namespace psd::optim {
namespace {

constexpr double kUnit = 1.0 / 64;  // of initial parameters and gradients

void ParseCase(std::istringstream& words, GoldenCase& golden) {
  std::string dtype, shape;
  words >> golden.spec.type >> dtype >> shape;
  golden.dtype = dtype == "f32" ? DType::kF32 : DType::kF64;
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
  std::byte* bytes() { return block_->data(); }

 private:
  std::shared_ptr<Block> block_;
};

template <typename T>
absl::Status Compare(Array<T>& got, const std::vector<double>& want, double tolerance,
                     size_t step) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got.data()[i]) - want[i]);
    if (!(difference <= tolerance * std::max(1.0, std::abs(want[i])))) {
      return absl::InternalError(absl::StrFormat("element %d after step %d is %.17g, not %.17g", i,
                                                 step, got.data()[i], want[i]));
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ReplayAs(const GoldenCase& golden, double tolerance) {
  PSD_ASSIGN_OR_RETURN(auto optimizer, OptimizerRegistry::Builtin().Create(golden.spec));
  const size_t size = golden.initial.size();
  Array<T> parameter(size), next(size), gradient(size);
  std::copy(golden.initial.begin(), golden.initial.end(), parameter.data());
  std::vector<Array<T>> state;
  std::vector<std::byte*> state_data;
  for (const StateSlot& slot : optimizer->Slots(golden.dtype))
    state_data.push_back(state.emplace_back(size, slot.initial).bytes());
  StepArrays arrays;
  arrays.gradient = gradient.bytes();
  arrays.state = state_data;
  arrays.elements = static_cast<int64_t>(size);
  arrays.dtype = golden.dtype;
  arrays.step = 0;
  for (size_t step = 0; step < golden.steps.size(); ++step) {
    const GoldenStep& each = golden.steps[step];
    if (!each.gradient.empty()) {
      std::copy(each.gradient.begin(), each.gradient.end(), gradient.data());
      arrays.parameter = parameter.bytes();
      arrays.next = next.bytes();
      ++arrays.step;
      optimizer->Apply(arrays);
      std::swap(parameter, next);
      if (!std::equal(each.gradient.begin(), each.gradient.end(), gradient.data()))
        return absl::InternalError("the gradient was modified");
    }
    PSD_RETURN_IF_ERROR(Compare(parameter, each.after, tolerance, step + 1));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<GoldenCase> ReadGoldenCases(std::istream& in) {
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string tag;
    words >> tag;
    if (tag == "case") {
      cases.emplace_back().line = line;
      ParseCase(words, cases.back());
    } else if (tag == "g") {
      cases.back().steps.push_back({ParseNumbers(words, kUnit), {}});
    } else if (cases.back().initial.empty()) {
      cases.back().initial = ParseNumbers(words, kUnit);
    } else {
      cases.back().steps.back().after = ParseNumbers(words, 1);
    }
  }
  return cases;
}

absl::Status Replay(const GoldenCase& golden) {
  return Annotate(
      golden.dtype == DType::kF32 ? ReplayAs<float>(golden, 1e-6) : ReplayAs<double>(golden, 1e-12),
      golden.line);
}

}  // namespace psd::optim
