#pragma once

// A store that several threads change at random, as trainers would.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/autograd/operators.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/change/changes.h"
#include "core/change/journal.h"
#include "core/change/replay.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/store.h"

namespace psd::change {

// An owner without a worker.
class LocalOwner {
 public:
  explicit LocalOwner(Journal* journal, Incarnation incarnation);

  Replay::Uses ForReplay() { return {*store, *changes, *operators, limits}; }

  const optim::OptimizerRegistry registry = optim::OptimizerRegistry::Builtin();
  const std::shared_ptr<const OperatorRegistry> operators = OperatorRegistry::Builtin();
  const program::ProgramLimits limits;
  const std::shared_ptr<MemoryBudget> budget = MemoryBudget::Create(0);
  IdSource ids;
  std::unique_ptr<Changes> changes;  // before the store, which hosts optimizers that use it
  std::unique_ptr<store::Store> store;
};

// One thread's part of the workload.
class RandomTrainer {
 public:
  // `steps_of` counts the applied steps of each type of optimizer in the order of kTypes.
  static constexpr std::array<const char*, 10> kTypes = {
      "sgd",      "adagrad", "adam",  "adamw",       "adamax",
      "adadelta", "rmsprop", "rprop", "sparse_adam", "rowwise_adagrad"};
  static constexpr size_t kModes = 4;  // asynchronous; bounded, refusing; bounded, waiting; rounds
  struct Counts {
    std::array<std::atomic<int>, kTypes.size()> types = {};
    std::array<std::atomic<int>, kModes> modes = {};
    std::atomic<int> rows{0}, sparse{0}, scheduled{0}, skipped{0}, private_steps{0}, groups{0};
    std::atomic<int> dropped_optimizers{0}, random_creations{0};
  };

  RandomTrainer(LocalOwner& owner, int number, Counts& counts)
      : owner_(owner), number_(number), counts_(counts), random_(static_cast<uint32_t>(number)) {}

  // Makes `changes` random changes, or tries to.
  void Run(int changes);

 private:
  struct Mine {
    std::shared_ptr<optim::OwnerOptimizer> optimizer;
    size_t type = 0;
    size_t mode = 0;
    bool named = false;
    bool scheduled = false;
    bool scales = false;
  };

  int Below(int end) { return static_cast<int>(random_() % static_cast<uint32_t>(end)); }
  double Number() { return std::uniform_real_distribution<double>(-1, 1)(random_); }
  std::string ValueName() { return "v" + std::to_string(Below(16)); }
  Tensor RandomTensor(const Shape& shape, DType dtype);
  // Entries that exist, parameters or rows that require grad.
  std::vector<store::EntryPtr> Stepped(bool rows);

  void Create();
  void Drop();
  void Assign();
  void CreateOptimizer();
  void DropOptimizer();
  void Step();
  void ChangeOptions();
  void ChangeLife();
  void Load();

  absl::StatusOr<optim::StepPlan> RandomPlan(const Mine& mine);
  Mine* AnyOptimizer() {
    return mine_.empty() ? nullptr
                         : &mine_[static_cast<size_t>(Below(static_cast<int>(mine_.size())))];
  }
  // Runs `body` while these write claims are held.
  void WithClaims(std::vector<GlobalId> ids, const std::function<void()>& body);

  LocalOwner& owner_;
  const int number_;
  Counts& counts_;
  std::mt19937 random_;
  std::vector<Mine> mine_;
  uint64_t next_step_ = 1;
};

}  // namespace psd::change
