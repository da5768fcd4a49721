#pragma once

// Four workers on one deterministic network, each with a weight and a few functions. Tests are
// instantiated over seeds, and each seed gives another order of delivery.

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/functions/functions.h"
#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/dist_autograd/context.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/test_worker.h"
#include "tests/core/fake_rpc.h"

namespace psd::dist_autograd {

using Floats = std::vector<float>;

inline Tensor Vector(std::initializer_list<float> values) {
  return Tensor::Of<float>({static_cast<int64_t>(values.size())}, values);
}

inline Floats Numbers(const Tensor& tensor) {
  Tensor dense = *tensor.Contiguous();
  return {dense.data<float>(), dense.data<float>() + dense.NumElements()};
}

// Collects the gradients of a local backward.
class Collected : public GradientSink {
 public:
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) override {
    gradients[leaf.key] = std::move(gradient);
    return absl::OkStatus();
  }
  std::map<GlobalId, Tensor> gradients;
};

class DistAutogradTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  DistAutogradTest()
      : network_(GetParam()),
        trainer_(network_, "trainer0", 1),
        owner0_(network_, "owner0", 2),
        owner1_(network_, "owner1", 3),
        owner2_(network_, "owner2", 4) {
    for (TestWorker* worker : Workers()) AddFunctions(*worker);
  }

  std::vector<TestWorker*> Workers() { return {&trainer_, &owner0_, &owner1_, &owner2_}; }

  // The key of the worker's weight.
  static GlobalId KeyOf(const TestWorker& worker) {
    return {worker.agent.self().incarnation, 1'000'000};
  }
  Variable WeightOf(const TestWorker& worker) {
    return Variable::Leaf(weights_, KeyOf(worker), ++version_);
  }

  void AddFunctions(TestWorker& worker) {
    auto& functions = worker.functions;
    functions["fetch"] = [this](TestWorker& self, const ContextPtr&, const Variables&) {
      return Variables{WeightOf(self)};
    };
    functions["mul"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Mul(v[0], v[1])};
    };
    functions["add"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Add(v[0], v[1])};
    };
    functions["first"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Mul(v[0], 2)};
    };
    functions["sum"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Sum(v[0])};
    };
    functions["several"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Mul(v[0], 2), Mul(v[0], 3), Mul(v[0], 4)};
    };
    functions["times_weight"] = [this](TestWorker& self, const ContextPtr&, const Variables& v) {
      return Variables{Mul(v[0], WeightOf(self))};
    };
    functions["nested"] = [](TestWorker& self, const ContextPtr& context, const Variables& v) {
      Variables inner = self.Call(context, "owner1", "times_weight", {Mul(v[0], 2)});
      return Variables{Mul(inner[0], v[0])};
    };
    functions["and_back"] = [](TestWorker& self, const ContextPtr& context, const Variables& v) {
      return Variables{Mul(self.Call(context, "trainer0", "times_weight", v)[0], v[0])};
    };
  }

  // Returns the gradient that `worker` holds in `context`, or an empty vector if it holds none.
  static Floats GradientAt(TestWorker& worker, const ContextPtr& context, GlobalId key) {
    auto found = worker.autograd->Find(context->id());
    if (!found.ok()) return {};
    auto gradient = (*found)->Gradient(key);
    return gradient.ok() ? Numbers(gradient->gradient) : Floats{};
  }

  static ContextState& PartAt(TestWorker& worker, const ContextPtr& context) {
    return **worker.autograd->Find(context->id());
  }

  void ExpectAtRest() {
    for (TestWorker* worker : Workers()) {
      EXPECT_EQ(worker->autograd->stats().running_passes, 0u) << worker->name();
    }
  }

  void ExpectNoContexts() {
    for (TestWorker* worker : Workers()) {
      EXPECT_EQ(worker->autograd->stats().contexts, 0u) << worker->name();
    }
  }

  testing::FakeNetwork network_;
  TestWorker trainer_, owner0_, owner1_, owner2_;
  Tensor weights_ = Vector({2, 3});
  uint64_t version_ = 0;
};

inline BackwardOptions InMode(BackwardMode mode) {
  BackwardOptions options;
  options.mode = mode;
  return options;
}

}  // namespace psd::dist_autograd
