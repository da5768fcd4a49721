#pragma once

// A store with parameters, and optimizers that step them, without a worker.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/parallel_for.h"
#include "core/change/changes.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::optim {

inline constexpr int64_t kElements = 8;
inline constexpr size_t kBytes = kElements * sizeof(float);

inline Tensor Full(double value) {
  return *Tensor::Full({kElements}, DType::kF32, value);
}

class OwnerOptimizerTest : public ::testing::Test {
 protected:
  OwnerOptimizerTest() { Reset(0); }
  void Reset(size_t limit) {
    store::StoreOptions options;
    options.memory = MemoryAccount::Create(limit, NewHeapAllocator());
    store_ = store::Store::Create(std::move(options), ids_);
    changes_ = std::make_unique<change::Changes>(
        change::Changes::Uses{*store_, registry_, limits_, *budget_, {}});
  }
  store::EntryPtr NewParameter(const std::string& name, Tensor value, bool requires_grad = true) {
    store::CreateOptions options;
    options.requires_grad = requires_grad;
    return *store_
                ->GetOrCreate(store::ChangingForTests::Make(), name, options,
                              [&] { return store::Value(value); })
                .Wait();
  }
  absl::StatusOr<std::shared_ptr<OwnerOptimizer>> NewOptimizer(
      const OptimizerSpec& spec, std::vector<store::EntryPtr> parameters,
      const OptimizerSettings& settings = {}, const Helpers& helpers = {},
      Executor* large_steps = nullptr) {
    return OwnerOptimizer::Create({{spec, std::move(parameters)}}, settings, registry_, *store_,
                                  *changes_, helpers, large_steps);
  }
  // Takes a step. It gets a new id if none is given.
  absl::StatusOr<StepResult> Step(OwnerOptimizer& optimizer,
                                  std::vector<ParameterGradient> gradients, GlobalId id = {},
                                  absl::AnyInvocable<bool()> begin_apply = nullptr,
                                  const StepTerms& terms = {}) {
    absl::StatusOr<StepResult> result = absl::UnknownError("not done");
    StepRequest request;
    request.step_id = id.IsNone() ? ids_.Next() : id;
    request.terms = terms;
    request.begin_apply = std::move(begin_apply);
    request.done = [&](absl::StatusOr<StepResult> r) { result = std::move(r); };
    absl::StatusOr<StepPlan> plan = optimizer.table().Plan(std::move(gradients));
    if (!plan.ok()) return plan.status();
    request.plan = *std::move(plan);
    optimizer.Step(std::move(request));
    return result;
  }
  // Starts a step and passes its result to `done`.
  void StartStep(OwnerOptimizer& optimizer, std::vector<ParameterGradient> gradients,
                 absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) {
    StepRequest request;
    request.step_id = ids_.Next();
    request.plan = *optimizer.table().Plan(std::move(gradients));
    request.done = std::move(done);
    optimizer.Step(std::move(request));
  }
  static float First(const store::EntryPtr& entry) {
    return entry->parameter->Pin()->tensor.data<float>()[0];
  }
  size_t used() const { return store_->stats().used_bytes; }

  OptimizerRegistry registry_ = OptimizerRegistry::Builtin();
  IdSource ids_{77};
  const program::ProgramLimits limits_;
  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(0);
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<change::Changes> changes_;
};

inline const OptimizerSpec kSgd1{"sgd", {{"lr", 1}}};

}  // namespace psd::optim
