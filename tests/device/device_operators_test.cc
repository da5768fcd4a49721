// Every operator that programs know, forward and backward, on a device: as on the CPU.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/creation_scope.h"
#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "core/autograd/operators.h"
#include "core/autograd/variable.h"
#include "core/base/device.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/dtype.h"
#include "gtest/gtest.h"
#include "tests/core/autograd/gradient_check.h"
#include "tests/core/autograd/legal_calls.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/device_under_test.h"

namespace psd {
namespace {

// The result of a call, and the gradients of its inputs; undefined where there is none.
struct Outcome {
  Tensor result;
  std::vector<Tensor> gradients;
};

// Makes the call with inputs on `device`, null for the host, and goes back from the sum of the
// squares of its result.
Outcome OutcomeOf(const testing::LegalCall& call, Device* device) {
  const CreationScope scope(device);
  std::vector<Variable> inputs;
  for (const Variable& input : call.inputs) {
    const bool real = input.dtype() == DType::kF32 || input.dtype() == DType::kF64;
    inputs.emplace_back(*CopyTo(device, input.tensor()), /*requires_grad=*/real);
  }
  const Variable result = OperatorRegistry::Builtin()->Run(call.op, inputs, call.attributes);
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    return {};
  }
  Outcome outcome{result.tensor(), std::vector<Tensor>(inputs.size())};
  if (!result.requires_grad()) return outcome;
  testing::FakeSink sink;
  const absl::Status back = Backward({Sum(result * result)}, sink);
  EXPECT_TRUE(back.ok()) << back;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].requires_grad()) outcome.gradients[i] = sink.Of(inputs[i]);
  return outcome;
}

// Integers, such as ids, are made on the host.
void ExpectNear(const Tensor& there, const Tensor& here, const Device* device) {
  ASSERT_EQ(there.defined(), here.defined());
  if (!here.defined()) return;
  EXPECT_EQ(there.device(), IsFloating(here.dtype()) ? device : nullptr);
  EXPECT_TRUE(ops::AllClose(*there.ToHost(), here, 1e-5, 1e-6))
      << there.ToHost()->ToString() << " beside " << here.ToString();
}

class DeviceOperatorsTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {};

INSTANTIATE_TEST_SUITE_P(Orders, DeviceOperatorsTest, ::testing::Values(0, 1));

TEST_P(DeviceOperatorsTest, GiveResultsAndGradientsThere) {
  testing::DeviceUnderTestOptions options;
  options.budget_bytes = size_t{16} << 20;
  options.seed = GetParam();
  const std::shared_ptr<Device> device = testing::OpenDeviceUnderTest(options);
  for (const testing::LegalCall& call : testing::LegalCalls()) {
    SCOPED_TRACE(call.op);
    const Outcome here = OutcomeOf(call, nullptr), there = OutcomeOf(call, device.get());
    ExpectNear(there.result, here.result, device.get());
    ASSERT_EQ(there.gradients.size(), here.gradients.size());
    for (size_t i = 0; i < here.gradients.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("input ", i));
      ExpectNear(there.gradients[i], here.gradients[i], device.get());
    }
  }
}

}  // namespace
}  // namespace psd
