#pragma once

// Ranks in one process, each with a replica of the same small model, and a plain optimizer beside
// them that knows nothing of ranks.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/collectives/group.h"
#include "client/ddp/replica.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/device.h"
#include "core/base/memory_budget.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/test_world.h"

namespace psd {

// A tensor whose elements differ from each other and from those of other seeds.
inline Tensor Wavy(const Shape& shape, double seed, DType dtype = DType::kF32) {
  const auto count = static_cast<size_t>(shape.NumElements());
  if (dtype == DType::kF64) {
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = std::sin(seed + 0.7 * static_cast<double>(i));
    return Tensor::Of(shape, std::move(values));
  }
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(std::sin(seed + 0.7 * static_cast<double>(i)));
  return Tensor::Of(shape, std::move(values));
}

// Parameters p0, p1, … of these shapes, the same on every call.
inline std::vector<ReplicaParameter> Model(const std::vector<Shape>& shapes) {
  std::vector<ReplicaParameter> parameters;
  for (size_t i = 0; i < shapes.size(); ++i) {
    ReplicaParameter& parameter = parameters.emplace_back();
    parameter.name = absl::StrCat("p", i);
    parameter.elements = Wavy(shapes[i], static_cast<double>(i));
  }
  return parameters;
}

// Gives each parameter the device in its place.
inline std::vector<ReplicaParameter> On(const std::vector<std::string>& devices,
                                        std::vector<ReplicaParameter> parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].device = devices[i];
  return parameters;
}

// A gradient for each parameter, which depends on `seed`.
inline std::vector<Tensor> Gradients(const Replica& replica, double seed) {
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < replica.size(); ++i) {
    const ReplicatedParameter& parameter = replica.parameters()[i];
    gradients.push_back(Wavy(parameter.shape, 10 * seed + static_cast<double>(i), parameter.dtype));
  }
  return gradients;
}

// Returns a context of the replica's worker that has these gradients; undefined ones are missing.
inline Context WithGradients(const Replica& replica, const std::vector<Tensor>& gradients) {
  Context context = Must(replica.worker().NewContext());
  const absl::Status set = replica.SetGradients(context, gradients);
  EXPECT_TRUE(set.ok()) << set;
  return context;
}

inline void ExpectSameElements(const Replica& a, const Replica& b, const std::string& when = "") {
  const std::vector<Tensor> of_a = Must(a.Elements()), of_b = Must(b.Elements());
  ASSERT_EQ(of_a.size(), of_b.size());
  for (size_t i = 0; i < of_a.size(); ++i)
    EXPECT_TRUE(SameBits(of_a[i], of_b[i])) << "parameter " << i << " " << when;
}

// A worker without a job, its replica and a DistributedOptimizer over it.
struct PlainTrainer {
  explicit PlainTrainer(std::vector<ReplicaParameter> parameters) {
    WorkerOptions options;
    options.name = "plain";
    options.logger = NewNullLogger();
    worker = Must(Worker::Start(std::move(options)));
    replica = std::make_unique<Replica>(Must(Replica::Create(*worker, std::move(parameters))));
  }
  PlainTrainer(std::vector<ReplicaParameter> parameters, const OptimizerSpec& spec,
               const OptimizerSettings& settings = {})
      : PlainTrainer(std::move(parameters)) {
    optimizer = Must(DistributedOptimizer::Create(*worker, spec, replica->values(), settings));
  }
  void Step(const std::vector<Tensor>& gradients, const StepOptions& options = {}) {
    const Context context = WithGradients(*replica, gradients);
    const absl::Status stepped = optimizer->Step(context, options);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }

  std::unique_ptr<Worker> worker;
  std::unique_ptr<Replica> replica;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

// Charges all memory that a worker may still take for values, until the result is destroyed.
inline std::vector<MemoryCharge> TakeAllMemory(Worker& worker) {
  std::vector<MemoryCharge> charges;
  MemoryAccount& memory = RuntimeOf(worker).store().memory();
  for (size_t bytes = memory.limit_bytes(); bytes > 0; bytes /= 2) {
    for (;;) {
      absl::StatusOr<MemoryCharge> charge = memory.Charge(bytes);
      if (!charge.ok()) break;
      charges.push_back(*std::move(charge));
    }
  }
  return charges;
}

// Ranks of one group with equal replicas.
class ReplicaWorld {
 public:
  ReplicaWorld(int ranks, const std::vector<ReplicaParameter>& parameters,
               size_t memory_budget_bytes = 0, bool shared_memory = true)
      : world(ranks, shared_memory, memory_budget_bytes), groups(world.JoinAll("ranks")) {
    for (int rank = 0; rank < ranks; ++rank)
      replicas.push_back(Must(Replica::Create(*world.workers[rank], parameters)));
  }
  // There is a rank for each element of `parameters`. All ranks have `devices`.
  ReplicaWorld(const std::vector<std::vector<ReplicaParameter>>& parameters,
               std::vector<std::shared_ptr<Device>> devices)
      : world(static_cast<int>(parameters.size()), /*shared_memory=*/true,
              /*memory_budget_bytes=*/0, std::move(devices)),
        groups(world.JoinAll("ranks")) {
    for (size_t rank = 0; rank < parameters.size(); ++rank)
      replicas.push_back(Must(Replica::Create(*world.workers[rank], parameters[rank])));
  }
  int size() const { return static_cast<int>(groups.size()); }
  // Runs f on all ranks at the same time.
  void OnAll(const std::function<void(int rank)>& f) const { InParallel(size(), f); }

  GroupWorld world;
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<Replica> replicas;
};

// Returns the number of calls that the group of these ranks has made, and ends it: ranks that make
// different calls get an error with the number of the call.
inline int CountCalls(const ReplicaWorld& world) {
  absl::Status differs;
  world.OnAll([&](int rank) {
    Group& group = *world.groups[rank];
    const absl::Status status =
        rank == 0 ? group.Barrier() : group.AllGather(Tensor::Scalar<float>(0)).status();
    if (rank == 0) differs = status;
  });
  constexpr absl::string_view kBefore = "the ranks differ in call ";
  const absl::string_view text = differs.message();
  const size_t at = text.find(kBefore);
  int calls = -1;
  if (at == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(at + kBefore.size(), text.find(':', at) - at - kBefore.size()),
                        &calls)) {
    ADD_FAILURE() << differs;
  }
  return calls;
}

}  // namespace psd
