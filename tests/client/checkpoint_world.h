#pragma once

// A model that is trained, saved and loaded again, for tests of saves and loads.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd {

// Parameters of different sizes with an optimizer. A step depends on every element and on the
// optimizer's state.
class Model {
 public:
  Model(Worker& worker, std::vector<std::string> owners, const OptimizerSpec& spec)
      : worker_(worker) {
    for (int i = 0; i < 6; ++i) {
      std::vector<float> elements(static_cast<size_t>(3 + 50 * i));
      for (size_t k = 0; k < elements.size(); ++k)
        elements[k] = 0.01f * static_cast<float>((k * 37 + static_cast<size_t>(i)) % 100);
      const Tensor start = Tensor::Of<float>(Shape{static_cast<int64_t>(elements.size())},
                                             absl::MakeConstSpan(elements));
      CreateOptions options;
      options.requires_grad = true;
      const std::string name = "layer" + std::to_string(i) + "/w";
      const std::string& owner = owners[static_cast<size_t>(i) % owners.size()];
      const bool exists = worker.Lookup(owner, name).ok();
      rrefs_.push_back(exists ? Must(worker.Lookup(owner, name))
                              : MakeParameter(worker, owner, name, start));
    }
    optimizer_ = Must(DistributedOptimizer::Create(worker, "main", spec, rrefs_));
  }

  // Makes a step for the loss sum(w * w * c).
  void Step(double c) {
    Context context = Must(worker_.NewContext());
    std::vector<Variable> parameters = Must(worker_.ToHere(rrefs_, context));
    std::vector<Variable> roots;
    for (const Variable& w : parameters) roots.push_back(Sum(w * w * c));
    ASSERT_TRUE(context.Backward(roots).ok());
    const absl::Status stepped = optimizer_->Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step(0.5 + 0.25 * i);
  }

  std::vector<std::string> Elements() {
    std::vector<std::string> elements;
    for (const Value& value : Must(worker_.ToHere(rrefs_)))
      elements.emplace_back(value.As<Variable>()->tensor().AsBuffer().view());
    return elements;
  }

 private:
  Worker& worker_;
  std::vector<RRef> rrefs_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

inline void Host(worker::Runtime& runtime, const std::string& name, store::Value value) {
  Must(runtime.store()
           .GetOrCreate(store::ChangingForTests::Make(), name, {},
                        [&] { return absl::StatusOr<store::Value>(value); })
           .Wait());
}

// The parameter says how saves are written: by the owners themselves (true), or by the worker that
// saves, which the owners stream to (false).
class CheckpointTest : public ::testing::TestWithParam<bool> {
 protected:
  SaveOptions Saving() {
    SaveOptions options;
    options.dir = "saves";
    options.files = disk_;
    options.batch_bytes = 1000;  // makes several batches
    return options;
  }
  LoadOptions Loading() {
    LoadOptions options;
    options.dir = "saves";
    options.files = disk_;
    options.batch_bytes = 1000;
    return options;
  }
  // Starts empty owners of these names, and a trainer that is attached to them.
  std::unique_ptr<Worker> StartJob(const std::vector<std::string>& names) {
    std::vector<OwnerAddress> addresses;
    for (const std::string& name : names) {
      worker::RuntimeOptions options;
      if (GetParam()) options.checkpoint_root = std::make_shared<checkpoint::FakeRoot>(disk_);
      owners_.push_back(std::make_unique<TestOwner>(name, std::move(options)));
      addresses.push_back(owners_.back()->address());
    }
    return StartTrainer("trainer", addresses);
  }

  std::shared_ptr<checkpoint::FakeFileSystem> disk_ =
      std::make_shared<checkpoint::FakeFileSystem>();
  std::vector<std::unique_ptr<TestOwner>> owners_;
};

struct Continued {
  std::vector<std::string> at_save;
  std::vector<std::string> three_later;
};

// Takes five steps, saves, and takes three more.
inline Continued TrainAndSave(Worker& worker, const std::vector<std::string>& owners,
                              const OptimizerSpec& spec, const SaveOptions& options) {
  Model model(worker, owners, spec);
  model.Steps(5);
  const SaveSummary saved = Must(SaveModel(worker, options));
  EXPECT_EQ(saved.values, 6u);
  EXPECT_EQ(saved.optimizers, 1u);
  Continued continued;
  continued.at_save = model.Elements();
  model.Steps(3);
  continued.three_later = model.Elements();
  return continued;
}

}  // namespace psd
