#pragma once

// Two owners, and trainers that step optimizers over a parameter on each.

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/psd.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {

inline const OptimizerSpec kSgd1{"sgd", {{"lr", 1}}};

// Makes a context in which every element of each parameter has the gradient given for it.
inline Context Collect(Worker& worker, const std::vector<std::pair<RRef, double>>& gradients) {
  Context context = Must(worker.NewContext());
  std::vector<RRef> parameters;
  for (const auto& [parameter, gradient] : gradients) parameters.push_back(parameter);
  auto values = Must(worker.ToHere(parameters, context));
  std::vector<Variable> roots;
  for (size_t i = 0; i < values.size(); ++i) roots.push_back(Sum(values[i] * gradients[i].second));
  Variable loss = roots[0];
  for (size_t i = 1; i < roots.size(); ++i) loss = loss + roots[i];
  absl::Status done = context.Backward({loss});
  EXPECT_TRUE(done.ok()) << done;
  return context;
}

// The parameters have two elements of 10 each: "w" is on owner0 and "b" on owner1.
class OptimizerTest : public ::testing::Test {
 protected:
  RRef Make(const std::string& owner, const std::string& name, float value) {
    return MakeParameter(*trainer_, owner, name, Tensor::Of<float>({2}, {value, value}));
  }
  float First(const RRef& rref) { return Read(*trainer_, rref)[0]; }
  std::unique_ptr<Worker> StartOther(const std::string& name) {
    return StartTrainer(name, {owner0_.address(), owner1_.address()});
  }
  // Creates or joins the optimizer "main" of both parameters from `worker`.
  std::unique_ptr<DistributedOptimizer> Shared(Worker& worker, const OptimizerSettings& settings) {
    return Must(DistributedOptimizer::Create(
        worker, "main", kSgd1,
        std::vector<RRef>{Must(worker.Lookup("owner0", "w")), Must(worker.Lookup("owner1", "b"))},
        settings));
  }

  TestOwner owner0_{"owner0"};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
  RRef w_ = Make("owner0", "w", 10), b_ = Make("owner1", "b", 10);
};

// Returns when `steps` steps wait on `lead`, where all steps of several owners wait for their
// turns.
inline void AwaitWaiting(TestOwner& lead, uint64_t steps) {
  const auto waiting = [&lead] {
    const auto status = lead.runtime().status().Collect({});
    return status.optimizers_size() == 0 ? 0 : status.optimizers(0).waiting();
  };
  while (waiting() != steps) std::this_thread::yield();
}

// Two trainers, for the modes in which steps wait for those of others.
class ModesTest : public OptimizerTest {
 protected:
  // Runs a step of `worker` with these gradients on a thread of its own.
  std::future<StepOutcome> StepAsync(Worker& worker, DistributedOptimizer& optimizer, double w,
                                     double b, const StepOptions& options = {}) {
    return std::async(std::launch::async, [&worker, &optimizer, w, b, options] {
      RRef w_ref = Must(worker.Lookup("owner0", "w")), b_ref = Must(worker.Lookup("owner1", "b"));
      Context context = Collect(worker, {{w_ref, w}, {b_ref, b}});
      return optimizer.StepDetailed(context, options);
    });
  }
  void AwaitWaiting(uint64_t steps) { psd::AwaitWaiting(owner0_, steps); }

  std::unique_ptr<Worker> other_ = StartOther("trainer1");
};

}  // namespace psd
