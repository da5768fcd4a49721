#pragma once

// Steps of optimizers on an owner with a device, asked for without a trainer.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_scope.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/device/emulated/emulated_device.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_request.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/change/memory_journal.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/device_owner.h"

namespace psd {

// Also notes which account is charged for what the journal allocates for a step.
class ScopeJournal : public change::MemoryJournal {
 public:
  void Append(const change::Change& change) override {
    if (std::holds_alternative<const optim::StepChange*>(change)) scope = MemoryScope::Current();
    MemoryJournal::Append(change);
  }
  std::atomic<MemoryAccount*> scope{nullptr};
};

// The answer to a step. Outlives it.
struct Answer {
  absl::StatusOr<optim::StepResult> result = absl::UnknownError("not answered");
  int number = 0;  // counts the answers from 1
  std::atomic<bool> given{false};
};

// The owner is a Host. The parameter is the seed of its device, which decides in which order an
// emulated one works.
template <typename Host>
class OwnerSteps : public ::testing::TestWithParam<uint64_t> {
 protected:
  // Without a journal, journal_ sees nothing.
  explicit OwnerSteps(bool has_journal = true) : has_journal_(has_journal) {}

  worker::RuntimeOptions Options() {
    worker::RuntimeOptions options;
    if (has_journal_) options.journal = journal_;
    options.memory = memory_;
    return options;
  }
  // Starts again with a new owner and device.
  void Restart() {
    host_.reset();
    host_ = std::make_unique<Host>("owner", Options(), GetParam());
  }
  worker::Runtime& runtime() { return host_->owner().runtime(); }
  auto& device() { return host_->device(); }

  store::EntryPtr NewValue(const std::string& name, const std::string& where, Tensor elements,
                           bool rows) {
    change::CreateValue creation{
        {}, name, nullptr, std::move(elements), rows, /*requires_grad=*/true, where};
    return Must(runtime().changes().Apply(std::move(creation)).Wait());
  }
  store::EntryPtr NewParameter(const std::string& name, const std::string& where, Tensor elements) {
    return NewValue(name, where, std::move(elements), /*rows=*/false);
  }
  store::EntryPtr NewTable(const std::string& name, const std::string& where, Tensor elements) {
    return NewValue(name, where, std::move(elements), /*rows=*/true);
  }
  store::EntryPtr HostOptimizer(const std::string& name, const optim::OptimizerSpec& spec,
                                std::vector<store::EntryPtr> parameters,
                                const optim::OptimizerSettings& settings = {}) {
    change::CreateOptimizer creation;
    creation.name = name;
    creation.groups = {{spec, std::move(parameters)}};
    creation.settings = settings;
    creation.life.id = runtime().ids().Next();
    creation.life.owners = {{runtime().name(), runtime().incarnation()}};
    return Must(runtime().changes().Apply(std::move(creation), nullptr).Wait());
  }
  std::shared_ptr<optim::OwnerOptimizer> NewOptimizer(
      const std::string& name, const optim::OptimizerSpec& spec,
      std::vector<store::EntryPtr> parameters, const optim::OptimizerSettings& settings = {}) {
    return optim::OptimizerOf(*HostOptimizer(name, spec, std::move(parameters), settings));
  }
  // Asks for a step of a trainer.
  void Step(optim::OwnerOptimizer& optimizer, optim::StepPlan plan, Answer& answer, GlobalId id,
            const optim::StepTerms& terms = {}, Incarnation trainer = kTrainer) {
    optim::StepRequest request;
    request.step_id = id;
    request.member = {{trainer, 1}, std::to_string(trainer)};
    request.terms = terms;
    request.plan = std::move(plan);
    request.done = [this, &answer](absl::StatusOr<optim::StepResult> result) {
      answer.result = std::move(result);
      answer.number = ++answers_;
      answer.given = true;
    };
    optimizer.Step(std::move(request));
  }
  static void Await(const Answer& answer) {
    while (!answer.given) std::this_thread::yield();
  }
  void ExpectElements(const store::EntryPtr& parameter, const Tensor& elements) {
    EXPECT_TRUE(ops::Equal(*Must(parameter->parameter->Pin()).tensor.ToHost(), elements));
  }
  static void ExpectLost(const Answer& answer, const std::string& why) {
    const absl::Status& status = answer.result.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::HasSubstr("emu:0"), ::testing::HasSubstr(why)));
  }
  // Whether nothing uses the device's pinned memory.
  bool AllPinnedMemoryIsFree() {
    return device().pinned_memory().Allocate(EmulatedDeviceOptions().pinned_bytes).ok();
  }

  static constexpr Incarnation kTrainer = 4711;
  static Tensor Full(float value) { return *Tensor::Full({6}, DType::kF32, value); }

  const bool has_journal_;
  std::atomic<int> answers_{0};  // that were given
  const std::shared_ptr<ScopeJournal> journal_ = std::make_shared<ScopeJournal>();
  const std::shared_ptr<MemoryBudget> memory_ = MemoryBudget::Create(size_t{1} << 30);
  std::unique_ptr<Host> host_ = std::make_unique<Host>("owner", Options(), GetParam());
};

class OwnerStepsTest : public OwnerSteps<DeviceOwner> {
 protected:
  using OwnerSteps::OwnerSteps;
};

}  // namespace psd
