#pragma once

// Steps of tables of rows on an owner with a device, against steps of the same tables on the CPU.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/device.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/optim/steps/step_request.h"
#include "core/runtime/runtime.h"
#include "core/store/rows.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/owner_steps.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {

// Elements of either dtype in [-1, 1).
inline Tensor RandomElements(const Shape& shape, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor = *Tensor::Empty(shape, dtype);
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    const double x = static_cast<double>(random() % 20000) / 10000 - 1;
    if (dtype == DType::kF32) {
      tensor.mutable_data<float>()[i] = static_cast<float>(x);
    } else {
      tensor.mutable_data<double>()[i] = x;
    }
  }
  return tensor;
}

// Base is an OwnerSteps.
template <typename Base>
class RowSteps : public Base {
 protected:
  static constexpr int64_t kRows = 12;  // of the tables below

  static store::Rows& RowsOf(const store::EntryPtr& table) { return *store::AsRows(table->value); }

  // A gradient of the table with random values for these ids.
  static optim::ParameterGradient GradientOf(const store::EntryPtr& table,
                                             const std::vector<int64_t>& ids, unsigned seed) {
    const store::Rows& rows = RowsOf(table);
    const auto count = static_cast<int64_t>(ids.size());
    const Tensor values = RandomElements({count, rows.shape()[1]}, rows.dtype(), seed);
    optim::ParameterGradient gradient;
    gradient.parameter = table->id;
    gradient.version = rows.version();
    gradient.sparse = {
        Must(SparseTensor::Create(rows.shape(), Tensor::Of<int64_t>({1, count}, ids), values))};
    return gradient;
  }
  absl::Status Step(optim::OwnerOptimizer& optimizer, optim::StepPlan plan,
                    const optim::StepTerms& terms = {}) {
    Answer answer;
    Base::Step(optimizer, std::move(plan), answer, this->runtime().ids().Next(), terms);
    Base::Await(answer);
    return answer.result.status();
  }
  absl::Status Step(optim::OwnerOptimizer& optimizer,
                    std::vector<optim::ParameterGradient> gradients,
                    const optim::StepTerms& terms = {}) {
    return Step(optimizer, Must(optimizer.table().Plan(std::move(gradients))), terms);
  }
  // The bytes of a table and of its state.
  static std::string Contents(const optim::OwnerOptimizer& optimizer,
                              const store::EntryPtr& table) {
    const auto& stepped = optimizer.table()[*optimizer.table().Find(table->id)];
    store::Rows& rows = RowsOf(table);
    std::string contents(rows.bytes(), '\0');
    const auto bytes = [&contents](size_t at) {
      return reinterpret_cast<std::byte*>(contents.data() + at);
    };
    EXPECT_TRUE(rows.ReadElements(0, bytes(0), rows.bytes()).ok());
    for (const optim::StateArray& array : stepped.state()) {
      const size_t at = contents.size();
      contents.resize(at + array.bytes);
      EXPECT_TRUE(CopyBytes(nullptr, bytes(at), array.device, array.data, array.bytes).ok());
    }
    return contents;
  }
  template <typename T>
  static void ExpectNear(const std::string& got, const std::string& want, double tolerance) {
    for (size_t at = 0; at < want.size(); at += sizeof(T)) {
      T a, b;
      std::memcpy(&a, got.data() + at, sizeof(T));
      std::memcpy(&b, want.data() + at, sizeof(T));
      ASSERT_NEAR(a, b, tolerance) << "element " << at / sizeof(T);
    }
  }
  static void ExpectSame(const std::string& got, const std::string& want, DType dtype, bool exact) {
    ASSERT_EQ(got.size(), want.size());
    if (exact && testing::CpuFuses()) {
      EXPECT_TRUE(got == want) << "other bits";
    } else if (dtype == DType::kF32) {
      ExpectNear<float>(got, want, 1e-5);
    } else {
      ExpectNear<double>(got, want, 1e-13);
    }
  }
  store::EntryPtr NewTableThere(const std::string& name, unsigned seed = 1) {
    return Base::NewTable(name, this->device().name(),
                          RandomElements({kRows, 3}, DType::kF32, seed));
  }
  store::EntryPtr NewTableHere(const std::string& name, unsigned seed = 1) {
    return Base::NewTable(name, "cpu", RandomElements({kRows, 3}, DType::kF32, seed));
  }

  const optim::OptimizerSpec adagrad_{"adagrad", {{"lr", 0.1}}};
};

}  // namespace psd
