#pragma once

// A model of which one owner can lose its part, for tests of optimizers that several owners share.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "client/checkpoint.h"
#include "client/psd.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd {

using Optimizer = std::unique_ptr<DistributedOptimizer>;

inline constexpr char kName[] = "main";

inline std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

// Two owners with one parameter each. Trainers attach to both.
class HalfModel : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < 2; ++i) Restart(i);
  }

  static std::string Owner(size_t i) { return "owner" + std::to_string(i); }

  // Replaces owner i, if there is one, by an empty owner of the same name.
  void Restart(size_t i) {
    owners_[i].reset();
    owners_[i] = std::make_unique<TestOwner>(Owner(i));
  }

  std::unique_ptr<Worker> Attach(const std::string& name = "trainer") {
    return StartTrainer(name, {owners_[0]->address(), owners_[1]->address()});
  }

  static std::vector<RRef> Parameters(Worker& worker) {
    CreateOptions options;
    options.requires_grad = true;
    std::vector<RRef> parameters;
    for (size_t i = 0; i < 2; ++i)
      parameters.push_back(
          Must(worker.GetOrCreate(Owner(i), "w" + std::to_string(i), Zeros(Shape{3}), options)));
    return parameters;
  }

  static absl::StatusOr<Optimizer> Create(Worker& worker, const JoinOptions& join = {},
                                          const OptimizerSettings& settings = {}) {
    return DistributedOptimizer::Create(worker, kName, Sgd{0.5, 0.5}, Parameters(worker), settings,
                                        join);
  }

  // Makes a step in which every element has the gradient 1.
  static StepOutcome Step(Worker& worker, DistributedOptimizer& optimizer) {
    Context context = Must(worker.NewContext());
    std::vector<Variable> roots;
    for (const Variable& w : Must(worker.ToHere(Parameters(worker), context)))
      roots.push_back(Sum(w));
    EXPECT_TRUE(context.Backward(roots).ok());
    return optimizer.StepDetailed(context);
  }
  static void Steps(Worker& worker, DistributedOptimizer& optimizer, int count) {
    for (int i = 0; i < count; ++i) {
      const absl::Status stepped = Step(worker, optimizer).status();
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  }
  void Train(int steps) {
    auto trainer = Attach();
    auto optimizer = Must(Create(*trainer));
    Steps(*trainer, *optimizer, steps);
  }

  // The first element of each parameter.
  static std::vector<float> First(Worker& worker) {
    std::vector<float> first;
    for (const RRef& rref : Parameters(worker)) first.push_back(Read(worker, rref)[0]);
    return first;
  }

  absl::Status Save(Worker& worker) {
    SaveOptions options;
    options.dir = "saves";
    options.files = disk_;
    options.busy_share = 1;
    return SaveModel(worker, options).status();
  }
  LoadOptions Loading(bool only_missing, bool accept_skew = false) {
    LoadOptions options;
    options.dir = "saves";
    options.files = disk_;
    options.only_missing = only_missing;
    options.accept_skew = accept_skew;
    return options;
  }

  const std::shared_ptr<checkpoint::FakeFileSystem> disk_ =
      std::make_shared<checkpoint::FakeFileSystem>();
  std::unique_ptr<TestOwner> owners_[2];
};

}  // namespace psd
