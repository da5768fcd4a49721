#pragma once

// Trainers on hosts whose gradients one of them pushes, and two owners that tests can disturb.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/ddp/hierarchical_push.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/ddp/replica_world.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"

namespace psd {

// The gradients and steps that an owner has received.
struct Traffic {
  std::atomic<size_t> bytes{0};
  std::atomic<bool> mute{false};        // while true, the owner answers nobody
  std::atomic<bool> mute_steps{false};  // the next step that arrives sets `mute`
  std::atomic<bool> no_room{false};     // while true, the owner has no room for steps
  std::atomic<int> refused_steps{0};    // for which there was no room
  std::atomic<int> steps{0};            // requests for a step that have arrived
};

inline bool IsOf(const carrier::Message& message, const std::string& method) {
  return message.header.find(method) != std::string::npos;
}

inline worker::RuntimeOptions Counting(Traffic& traffic) {
  testing::PickyRules rules;
  rules.loses = [&traffic](const carrier::Message& message) {
    if (IsOf(message, "gradient.push") || IsOf(message, "autograd.gradient"))
      traffic.bytes += message.TotalBytes();
    if (IsOf(message, "optimizer.step")) ++traffic.steps;
    if (IsOf(message, "optimizer.step") && traffic.mute_steps.exchange(false)) traffic.mute = true;
    return false;
  };
  rules.refuses = [&traffic](const carrier::Message&) -> absl::Status {
    return traffic.mute ? absl::UnavailableError("the owner is mute") : absl::OkStatus();
  };
  rules.lacks_room = [&traffic](const carrier::Message& message) -> absl::Status {
    if (!traffic.no_room || !IsOf(message, "optimizer.step")) return absl::OkStatus();
    ++traffic.refused_steps;
    return absl::ResourceExhaustedError("no room for a step");
  };
  worker::RuntimeOptions options;
  options.carrier =
      std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})), rules);
  return options;
}

// Trainers t0, t1, … of hosts with two trainers each, or of one host. Parameter "b" is on owner0,
// which is also the registrar, and "w" on owner1.
class HierarchicalPushTest : public ::testing::Test {
 protected:
  void Start(int trainers, bool one_host = false) {
    for (int i = 0; i < trainers; ++i) {
      WorkerOptions options = world_.Options(absl::StrCat("t", i));
      options.owners.push_back(owner1_.address());
      world_.workers.push_back(Must(Worker::Start(std::move(options))));
    }
    MakeParameter(*world_.workers[0], "owner0", "b", Wavy({5}, 1));
    MakeParameter(*world_.workers[0], "owner1", "w", Wavy({100, 100}, 2));
    groups_.resize(trainers);
    InParallel(trainers, [&](int i) {
      if (one_host) return JoinGroup(i, "host", world_.Names());
      JoinGroup(i, absl::StrCat("host", i / 2),
                {absl::StrCat("t", i / 2 * 2), absl::StrCat("t", i / 2 * 2 + 1)});
    });
  }
  void JoinGroup(int i, const std::string& name, const std::vector<std::string>& members) {
    GroupOptions options;
    options.members = members;
    groups_[i] = Must(Group::Join(worker(i), name, options));
  }
  Worker& worker(int i) { return *world_.workers[i]; }
  std::vector<RRef> Parameters(int i, const std::vector<std::string>& names) {
    std::vector<RRef> parameters;
    for (const std::string& name : names)
      parameters.push_back(Must(worker(i).Lookup(name == "b" ? "owner0" : "owner1", name)));
    return parameters;
  }
  std::vector<float> Read(const std::string& name) {
    return psd::Read(worker(1), Parameters(1, {name})[0]);
  }
  // Trainer i's handles.
  struct Handles {
    std::unique_ptr<DistributedOptimizer> optimizer;
    std::unique_ptr<HierarchicalPush> push;
  };
  Handles Make(int i, uint32_t trainers, const std::vector<std::string>& names, const Sgd& sgd,
               UpdateMode::Reduction reduction = UpdateMode::Reduction::kSum,
               const std::string& optimizer = "main") {
    OptimizerSettings settings;
    settings.loss_scaling = scaling_;
    settings.mode = UpdateMode::Synchronous(trainers, reduction);
    const std::vector<RRef> parameters = Parameters(i, names);
    Handles handles;
    handles.optimizer =
        Must(DistributedOptimizer::Create(worker(i), optimizer, sgd, parameters, settings));
    handles.push =
        Must(HierarchicalPush::Create(worker(i), groups_[i], *handles.optimizer, parameters));
    return handles;
  }
  // Creates it again with the trainer's present group.
  void Recreate(int i, Handles& handles, const std::vector<std::string>& names) {
    handles.push = Must(
        HierarchicalPush::Create(worker(i), groups_[i], *handles.optimizer, Parameters(i, names)));
  }
  // A context in which the gradients of trainer i are `gradients`; undefined ones are missing.
  Context WithGradients(int i, HierarchicalPush& push, const std::vector<Tensor>& gradients) {
    Context context = Must(worker(i).NewContext());
    const std::vector<Variable> variables = Must(push.Variables(context));
    for (size_t p = 0; p < gradients.size(); ++p) {
      if (!gradients[p].defined()) continue;
      const absl::Status done = context.Backward({Sum(Mul(variables[p], Variable(gradients[p])))});
      EXPECT_TRUE(done.ok()) << done;
    }
    return context;
  }
  void Kill(int i) { RuntimeOf(worker(i)).agent().Shutdown(absl::ZeroDuration()); }
  // Returns when `steps` steps wait on owner1.
  void AwaitWaiting(uint64_t steps) {
    for (;;) {
      const auto status = owner1_.runtime().status().Collect({});
      if (status.optimizers_size() > 0 && status.optimizers(0).waiting() == steps) return;
      std::this_thread::yield();
    }
  }

  Traffic traffic_;
  TestOwner owner1_{"owner1", Counting(traffic_)};
  GroupWorld world_{0};
  std::vector<std::shared_ptr<Group>> groups_;
  LossScaling scaling_;  // of the optimizers that Make creates
};

}  // namespace psd
