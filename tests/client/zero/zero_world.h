#pragma once

// Ranks with replicas and a ZeroRedundancyOptimizer each.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/device.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"

namespace psd {

class ZeroWorld : public ReplicaWorld {
 public:
  ZeroWorld(int ranks, const std::vector<ReplicaParameter>& parameters, const OptimizerSpec& spec,
            const ZeroOptions& options = {}, const std::vector<ZeroGroup>& groups_of = {},
            size_t memory_budget_bytes = 0)
      : ReplicaWorld(ranks, parameters, memory_budget_bytes) {
    zero.resize(static_cast<size_t>(ranks));
    OnAll([&](int rank) {
      zero[rank] =
          groups_of.empty()
              ? Must(ZeroRedundancyOptimizer::Create(groups[rank], replicas[rank], spec, options))
              : Must(ZeroRedundancyOptimizer::Create(groups[rank], replicas[rank], spec, groups_of,
                                                     options));
    });
  }
  // As ReplicaWorld, with devices.
  ZeroWorld(const std::vector<std::vector<ReplicaParameter>>& parameters,
            std::vector<std::shared_ptr<Device>> devices, const OptimizerSpec& spec)
      : ReplicaWorld(parameters, std::move(devices)) {
    zero.resize(parameters.size());
    OnAll([&](int rank) {
      zero[rank] = Must(ZeroRedundancyOptimizer::Create(groups[rank], replicas[rank], spec));
    });
  }
  // Every rank steps with these gradients.
  void Step(const std::function<std::vector<Tensor>(int rank)>& gradients,
            const ZeroStepOptions& options = {}) {
    OnAll([&](int rank) {
      const Context context = WithGradients(replicas[rank], gradients(rank));
      const absl::Status stepped = zero[rank]->Step(context, options);
      EXPECT_TRUE(stepped.ok()) << stepped;
    });
  }
  void Step(double seed, const ZeroStepOptions& options = {}) {
    Step([&](int rank) { return Gradients(replicas[rank], seed); }, options);
  }
  // The state, gathered on rank `to`.
  OptimizerSnapshot Gathered(int to) {
    OnAll([&](int rank) {
      const absl::Status done = zero[rank]->Consolidate(to);
      EXPECT_TRUE(done.ok()) << done;
    });
    return Must(zero[to]->State());
  }

  std::vector<std::unique_ptr<ZeroRedundancyOptimizer>> zero;
};

inline void ExpectSameState(const OptimizerSnapshot& a, const OptimizerSnapshot& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.steps, b.steps);
  ASSERT_EQ(a.groups.size(), b.groups.size());
  for (size_t g = 0; g < a.groups.size(); ++g) {
    EXPECT_EQ(a.groups[g].options, b.groups[g].options);
    ASSERT_EQ(a.groups[g].parameters.size(), b.groups[g].parameters.size());
    for (size_t i = 0; i < a.groups[g].parameters.size(); ++i) {
      const ParameterSnapshot& of_a = a.groups[g].parameters[i];
      const ParameterSnapshot& of_b = b.groups[g].parameters[i];
      EXPECT_EQ(of_a.name, of_b.name);
      EXPECT_EQ(of_a.steps, of_b.steps) << of_a.name;
      ASSERT_EQ(of_a.state.size(), of_b.state.size()) << of_a.name;
      for (const auto& [name, array] : of_a.state)
        EXPECT_TRUE(SameBits(array, of_b.state.at(name))) << of_a.name << " " << name;
    }
  }
}

}  // namespace psd
