#include "tests/core/change/workload.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/store/rows.h"
#include "core/store/write_claims.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/sparse_tensor.h"

namespace psd::change {
namespace {

constexpr size_t kSparseAdam = 8, kRowwiseAdagrad = 9;
constexpr int64_t kRows = 12, kWidth = 5;

bool StepsRows(size_t type) {
  return type <= 1 || type >= kSparseAdam;
}
bool StepsDense(size_t type) {
  return type < kSparseAdam;
}

}  // namespace

LocalOwner::LocalOwner(Journal* journal, Incarnation incarnation) : ids(incarnation) {
  store::StoreOptions options;
  options.memory = MemoryAccount::Create(0, NewHeapAllocator());
  store = store::Store::Create(std::move(options), ids);
  changes = std::make_unique<Changes>(
      Changes::Uses{*store, registry, limits, *budget, {}, nullptr, journal});
}

void RandomTrainer::Run(int changes) {
  for (int i = 0; i < changes; ++i) {
    const int dice = Below(100);
    if (dice < 8) {
      Create();
    } else if (dice < 12) {
      Drop();
    } else if (dice < 17) {
      Assign();
    } else if (dice < 27) {
      CreateOptimizer();
    } else if (dice < 32) {
      DropOptimizer();
    } else if (dice < 37) {
      ChangeOptions();
    } else if (dice < 42) {
      ChangeLife();
    } else if (dice < 48) {
      Load();
    } else {
      Step();
    }
  }
}

Tensor RandomTensor64(std::mt19937& random, const Shape& shape) {
  std::vector<double> elements(static_cast<size_t>(shape.NumElements()));
  for (double& each : elements) each = std::uniform_real_distribution<double>(-1, 1)(random);
  return Tensor::Of<double>(shape, elements);
}

Tensor RandomTrainer::RandomTensor(const Shape& shape, DType dtype) {
  return *ops::Cast(RandomTensor64(random_, shape), dtype);
}

std::vector<store::EntryPtr> RandomTrainer::Stepped(bool rows) {
  std::vector<store::EntryPtr> found;
  for (const store::EntryPtr& entry : owner_.store->List("v")) {
    const auto table = store::AsRows(entry->value);
    const bool fits = rows ? table != nullptr && table->requires_grad()
                           : entry->parameter != nullptr && entry->parameter->requires_grad();
    if (fits) found.push_back(entry);
  }
  return found;
}

void RandomTrainer::Create() {
  static constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
  CreateValue change;
  change.name = ValueName();
  change.rows = Below(3) == 0;
  change.requires_grad = Below(5) != 0;
  const DType dtype = change.rows ? kDTypes[Below(2)] : kDTypes[Below(4)];
  const Shape shape = change.rows || Below(2) == 0 ? Shape{kRows, kWidth} : Shape{1 + Below(40)};
  const bool drawn = dtype == DType::kF32 || dtype == DType::kF64;
  if (!drawn || Below(3) == 0) {
    change.elements = RandomTensor(shape, dtype);
    if (!change.rows && Below(6) == 0) {
      change.requires_grad = false;
      change.elements = Tensor::Of<int64_t>({3}, {1, 2, Below(100)});
    }
  } else {
    program::Program program;
    program::Instruction& draw = program.instructions.emplace_back();
    draw.op = "uniform";
    draw.attributes = {
        {"shape", std::vector<int64_t>(shape.extents().begin(), shape.extents().end())},
        {"dtype", static_cast<int64_t>(dtype)},
        {"low", -1.0},
        {"high", 1.0},
        {"seed", static_cast<int64_t>(random_())}};
    program.outputs = {0};
    auto checked = program::CheckedProgram::Create(program, *owner_.operators, owner_.limits);
    PSD_CHECK(checked.ok(), checked.status().ToString());
    change.program = std::make_shared<const program::CheckedProgram>(*std::move(checked));
    ++counts_.random_creations;
  }
  const auto created = owner_.changes->Apply(std::move(change)).Wait();
  PSD_CHECK(created.ok(), created.status().ToString());
}

void RandomTrainer::Drop() {
  const std::string name = ValueName();
  const auto entry = owner_.store->Lookup(name);
  if (!entry.ok() || !owner_.changes->Apply(DropName{name, *entry}).ok()) return;
  owner_.store->Erase((*entry)->id);  // no reference is left; an optimizer may still hold it
}

void RandomTrainer::Assign() {
  const auto entry = owner_.store->Lookup(ValueName());
  if (!entry.ok()) return;
  Tensor elements;
  if ((*entry)->parameter != nullptr) {
    elements = RandomTensor((*entry)->parameter->shape(), (*entry)->parameter->dtype());
  } else if (const auto rows = store::AsRows((*entry)->value); rows != nullptr) {
    elements = RandomTensor(rows->shape(), rows->dtype());
  } else {
    return;
  }
  Promise<Unit> done;
  owner_.changes->Assign(*entry, elements, [done](const absl::StatusOr<uint64_t>& version) {
    PSD_CHECK(version.ok(), version.status().ToString());
    done.Set(Unit{});
  });
  done.future().Wait().status().IgnoreError();
}

void RandomTrainer::CreateOptimizer() {
  Mine mine;
  mine.type = static_cast<size_t>(Below(kTypes.size()));
  mine.mode = static_cast<size_t>(Below(kModes));
  mine.named = Below(3) != 0;
  std::vector<store::EntryPtr> entries;
  if (StepsDense(mine.type)) entries = Stepped(/*rows=*/false);
  if (StepsRows(mine.type))
    for (const store::EntryPtr& entry : Stepped(/*rows=*/true)) entries.push_back(entry);
  std::shuffle(entries.begin(), entries.end(), random_);
  entries.resize(std::min<size_t>(entries.size(), static_cast<size_t>(1 + Below(5))));
  if (entries.empty()) return;
  change::CreateOptimizer change;
  if (mine.named) change.name = "o" + std::to_string(number_) + "/" + std::to_string(next_step_++);
  const int groups = 1 + Below(2);
  const bool momentum = (mine.type == 0 || mine.type == 6) && Below(2) == 0;
  for (int i = 0; i < groups; ++i) {
    optim::OptimizerSpec spec{kTypes[mine.type], {{"lr", 0.01 * (1 + Below(5))}}};
    if (momentum) spec.options["momentum"] = 0.9;
    change.groups.push_back({(*owner_.registry.Create(spec))->spec(), {}});
  }
  for (size_t i = 0; i < entries.size(); ++i)
    change.groups[i % static_cast<size_t>(groups)].parameters.push_back(entries[i]);
  using optim::UpdateMode;
  if (mine.mode == 1) change.settings.mode = UpdateMode::BoundedStaleness(3);
  if (mine.mode == 2)
    change.settings.mode = UpdateMode::BoundedStaleness(1000, UpdateMode::WhenStale::kWait);
  if (mine.mode == 3) change.settings.mode = UpdateMode::Synchronous(3);
  change.settings.mode.allow_unknown_versions = mine.mode == 1 || mine.mode == 2;
  mine.scheduled = Below(3) == 0;
  if (mine.scheduled) change.settings.schedule = optim::Schedule::Cosine(40).WithWarmup(5);
  mine.scales = Below(3) == 0;
  if (mine.scales) change.settings.loss_scaling = optim::LossScaling::Dynamic(8);
  change.life = {owner_.ids.Next(), {{"owner0", 5}}};
  const auto entry = owner_.changes
                         ->Apply(std::move(change),
                                 [&](const std::shared_ptr<optim::OwnerOptimizer>& made) {
                                   mine.optimizer = made;
                                 })
                         .Wait();
  // A dense parameter of an integer dtype, and rows of some types, are refused.
  if (!entry.ok()) return;
  counts_.groups += groups - 1;
  mine_.push_back(std::move(mine));
}

void RandomTrainer::DropOptimizer() {
  if (mine_.size() < 8) return;
  const size_t index = static_cast<size_t>(Below(static_cast<int>(mine_.size())));
  const Mine mine = mine_[index];
  const GlobalId id = mine.optimizer->claim_id();
  if (mine.named) {
    const store::EntryPtr entry = *owner_.store->Get(id);
    const absl::Status dropped = owner_.changes->Apply(DropName{entry->name, entry});
    PSD_CHECK(dropped.ok(), dropped.ToString());
    ++counts_.dropped_optimizers;
  }
  owner_.store->Erase(id);
  mine_.erase(mine_.begin() + static_cast<std::ptrdiff_t>(index));
}

absl::StatusOr<optim::StepPlan> RandomTrainer::RandomPlan(const Mine& mine) {
  std::vector<optim::ParameterGradient> gradients;
  const optim::ParameterTable& table = mine.optimizer->table();
  for (size_t i = 0; i < table.size(); ++i) {
    if (Below(4) == 0) continue;
    const store::Entry& entry = *table[i].entry();
    optim::ParameterGradient gradient;
    gradient.parameter = entry.id;
    const auto rows = store::AsRows(entry.value);
    const uint64_t version = table[i].version();
    gradient.version = Below(5) == 0 ? 0 : version - std::min<uint64_t>(version - 1, Below(3));
    const bool matrix = rows != nullptr || entry.parameter->shape().rank() == 2;
    const bool floats = table[i].dtype() == DType::kF32 || table[i].dtype() == DType::kF64;
    // sgd and adagrad take sparse gradients of dense parameters as well.
    if (rows != nullptr || (matrix && floats && mine.type <= 1 && Below(2) == 0)) {
      const int64_t count = 1 + Below(6);
      std::vector<int64_t> ids;
      for (int64_t k = 0; k < count; ++k) ids.push_back(Below(kRows));
      auto sparse = SparseTensor::Create({kRows, kWidth}, Tensor::Of<int64_t>({1, count}, ids),
                                         RandomTensor({count, kWidth}, table[i].dtype()));
      PSD_CHECK(sparse.ok(), sparse.status().ToString());
      gradient.sparse.push_back(*std::move(sparse));
      ++(rows != nullptr ? counts_.rows : counts_.sparse);
    } else {
      gradient.gradient = RandomTensor(entry.parameter->shape(), table[i].dtype());
    }
    gradients.push_back(std::move(gradient));
  }
  return mine.optimizer->table().Plan(std::move(gradients));
}

// A round has two members, one of them with two seats, and this thread plays both.
void RandomTrainer::Step() {
  Mine* mine = AnyOptimizer();
  if (mine == nullptr) return;
  optim::StepTerms terms;
  if (Below(2) == 0) terms.gradient_scale = 0.5 + Number() / 4;
  if (Below(3) == 0) terms.gradient_limit = 0.7;
  if (mine->scales) {
    terms.loss_scale = mine->optimizer->stats().loss_scale;
    terms.overflow = Below(6) == 0;
  }
  const int members = mine->mode == 3 ? 2 : 1;
  std::vector<Promise<optim::StepResult>> results(static_cast<size_t>(members));
  for (int member = 0; member < members; ++member) {
    auto plan = RandomPlan(*mine);
    PSD_CHECK(plan.ok(), plan.status().ToString());
    const GlobalId session{static_cast<Incarnation>(100 + 2 * number_ + member), 1};
    optim::StepRequest request;
    request.step_id = {session.incarnation, next_step_++};
    request.ended_before = request.step_id.counter > 20 ? request.step_id.counter - 20 : 0;
    request.member = {session, "trainer" + std::to_string(session.incarnation)};
    request.plan = *std::move(plan);
    request.terms = terms;
    if (mine->mode == 3 && member == 0) request.seats = 2;  // of three
    request.done = [result = results[static_cast<size_t>(member)]](
                       absl::StatusOr<optim::StepResult> r) { result.Set(std::move(r)); };
    mine->optimizer->Step(std::move(request));
  }
  for (Promise<optim::StepResult>& each : results) {
    const auto result = each.future().Wait();
    if (!result.ok()) continue;  // its gradient was too old
    ++counts_.types[mine->type];
    ++counts_.modes[mine->mode];
    counts_.scheduled += mine->scheduled;
    counts_.private_steps += !mine->named;
    counts_.skipped += result->skipped;
  }
}

void RandomTrainer::ChangeOptions() {
  Mine* mine = AnyOptimizer();
  if (mine == nullptr) return;
  const auto group = static_cast<size_t>(Below(static_cast<int>(mine->optimizer->num_groups())));
  Promise<Unit> done;
  mine->optimizer->SetOptions(group, {{"lr", 0.001 * (1 + Below(50))}}, 0, {},
                              [done](const absl::StatusOr<optim::GroupOptions>& changed) {
                                PSD_CHECK(changed.ok(), changed.status().ToString());
                                done.Set(Unit{});
                              });
  done.future().Wait().status().IgnoreError();
}

void RandomTrainer::ChangeLife() {
  Mine* mine = AnyOptimizer();
  if (mine == nullptr) return;
  const absl::Status changed =
      mine->optimizer->SetLife({owner_.ids.Next(), {{"owner0", 5}, {"owner1", 6}}});
  PSD_CHECK(changed.ok(), changed.ToString());
}

void RandomTrainer::WithClaims(std::vector<GlobalId> ids, const std::function<void()>& body) {
  Promise<Unit> done;
  owner_.store->write_claims().Claim(std::move(ids), [&](store::WriteClaims::ClaimId claim) {
    body();
    owner_.store->write_claims().Release(claim);
    done.Set(Unit{});
  });
  done.future().Wait().status().IgnoreError();
}

void RandomTrainer::Load() {
  Mine* mine = AnyOptimizer();
  if (mine == nullptr) return;
  const optim::ParameterTable& table = mine->optimizer->table();
  std::vector<GlobalId> all = {mine->optimizer->claim_id()};
  for (size_t i = 0; i < table.size(); ++i) {
    LoadValue load;
    load.entry = table[i].entry();
    all.push_back(load.entry->id);
    const auto rows = store::AsRows(load.entry->value);
    Shape shape = rows != nullptr ? rows->shape() : load.entry->parameter->shape();
    int64_t count = 1;
    int64_t of = 1;
    if (rows != nullptr) {
      of = kRows;
      count = 1 + Below(kRows);
      load.first_row = Below(static_cast<int>(kRows - count + 1));
      shape = Shape{count, kWidth};
    }
    // Some loads replace only the state.
    if (rows != nullptr || Below(4) > 0) load.elements = RandomTensor(shape, table[i].dtype());
    LoadValue::State state{mine->optimizer, &table[i], Below(9), {}};
    for (const optim::StateArray& array : table[i].state()) {
      const auto bytes = static_cast<int64_t>(array.bytes) / of * count;
      const int64_t size = bytes / static_cast<int64_t>(ItemSize(array.dtype));
      Tensor elements = RandomTensor(Shape{size}, array.dtype);
      // The states of some types are never negative.
      state.arrays.push_back(*ops::Cast(*ops::Cast(elements, DType::kBool), array.dtype));
    }
    load.states.push_back(std::move(state));
    WithClaims({load.entry->id, mine->optimizer->claim_id()}, [&] {
      const absl::Status loaded = owner_.changes->Apply(load);
      PSD_CHECK(loaded.ok(), loaded.ToString());
    });
  }
  std::sort(all.begin(), all.end());
  const auto steps = static_cast<uint64_t>(Below(30));
  WithClaims(all, [&] {
    const absl::Status finished = mine->optimizer->FinishLoad({owner_.ids.Next(), {{"owner0", 5}}},
                                                              {}, {steps, 16, steps / 2});
    PSD_CHECK(finished.ok(), finished.ToString());
  });
}

}  // namespace psd::change
