// The functional optimizers against values from an independent implementation (see
// tests/golden/optim/make_golden.py). OPT-25 to OPT-28, OPT-31 to OPT-33.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/optim/functional_optimizer.h"
#include "core/optim/optimizer_registry.h"
#include "core/tensor/dtype.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

struct GoldenStep {
  std::vector<double> gradient;  // empty: none
  std::vector<double> after;
};
struct GoldenCase {
  std::string line;
  OptimizerSpec spec;
  std::vector<double> initial;
  std::vector<GoldenStep> steps;
};

OptimizerSpec ParseSpec(std::istringstream& words) {
  OptimizerSpec spec;
  words >> spec.type;
  for (std::string option; words >> option;) {
    const size_t equals = option.find('=');
    spec.options[option.substr(0, equals)] = std::stod(option.substr(equals + 1));
  }
  return spec;
}

std::vector<double> ParseNumbers(std::istringstream& words) {
  std::vector<double> numbers;
  for (double number; words >> number;) numbers.push_back(number);
  return numbers;
}

std::vector<GoldenCase> ReadGolden() {
  std::ifstream file("tests/golden/optim/golden.txt");
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string tag;
    words >> tag;
    if (tag == "case") {
      cases.emplace_back().line = line;
      cases.back().spec = ParseSpec(words);
    } else if (tag == "g") {
      cases.back().steps.push_back({ParseNumbers(words), {}});
    } else if (cases.back().initial.empty()) {
      cases.back().initial = ParseNumbers(words);
    } else {
      cases.back().steps.back().after = ParseNumbers(words);
    }
  }
  return cases;
}

// An aligned array of T.
template <typename T>
class Array {
 public:
  explicit Array(size_t size) : block_(*NewHeapAllocator()->Allocate(size * sizeof(T))) {
    std::fill(data(), data() + size, T{0});
  }
  T* data() { return reinterpret_cast<T*>(block_->data()); }
  std::byte* bytes() { return block_->data(); }

 private:
  std::shared_ptr<Block> block_;
};

template <typename T>
void Replay(const GoldenCase& golden, double tolerance) {
  SCOPED_TRACE(golden.line);
  auto optimizer = OptimizerRegistry::Builtin().Create(golden.spec);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const size_t size = golden.initial.size();
  Array<T> parameter(size), next(size), gradient(size);
  std::copy(golden.initial.begin(), golden.initial.end(), parameter.data());
  std::vector<Array<T>> state;
  std::vector<std::byte*> state_data;
  for (const StateSlot& slot : (*optimizer)->Slots(DTypeOf<T>::value)) {
    EXPECT_EQ(slot.dtype, DTypeOf<T>::value);
    state_data.push_back(state.emplace_back(size).bytes());
  }
  StepArrays arrays;
  arrays.gradient = gradient.bytes();
  arrays.state = state_data;
  arrays.elements = static_cast<int64_t>(size);
  arrays.dtype = DTypeOf<T>::value;
  arrays.step = 0;
  for (const GoldenStep& step : golden.steps) {
    if (!step.gradient.empty()) {
      std::copy(step.gradient.begin(), step.gradient.end(), gradient.data());
      arrays.parameter = parameter.bytes();
      arrays.next = next.bytes();
      ++arrays.step;
      (*optimizer)->Apply(arrays);
      std::swap(parameter, next);
    }
    for (size_t i = 0; i < size; ++i) {
      const double want = step.after[i];
      ASSERT_NEAR(parameter.data()[i], want, tolerance * std::max(1.0, std::abs(want))) << i;
      if (!step.gradient.empty()) {
        ASSERT_EQ(gradient.data()[i], static_cast<T>(step.gradient[i]));  // OPT-44: untouched
      }
    }
  }
}

TEST(GoldenOptim, OPT_25_to_33_Float32) {
  const std::vector<GoldenCase> cases = ReadGolden();
  ASSERT_GE(cases.size(), 40u);
  for (const GoldenCase& golden : cases) Replay<float>(golden, 1e-6);
}

TEST(GoldenOptim, OPT_25_to_33_Float64) {
  for (const GoldenCase& golden : ReadGolden()) Replay<double>(golden, 1e-12);
}

}  // namespace
}  // namespace psd::optim
