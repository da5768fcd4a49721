// rows_lookup, rows_update: 32,768 skewed ids of a table of a million rows of 64 floats, in this
// process. rows_lookup reads the rows; rows_update steps them by Adagrad, which first sums the
// gradients of repeated ids. Floors: the same rows are read, or are read and written with their
// accumulators, in the order of the ids.
// embedding: both through an owner: lookup, loss, backward, step. Floor: the sum of both floors.

#include <utility>

#include "bench/floors.h"
#include "bench/job.h"
#include "bench/rows_floors.h"
#include "bench/stats.h"
#include "bench/workloads/cases.h"
#include "core/base/future.h"
#include "core/base/memory_budget.h"
#include "core/change/changes.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/rows.h"
#include "core/store/store.h"

namespace psd::bench {
namespace {

constexpr size_t kTableFloats = static_cast<size_t>(kTableRows * kTableWidth);
constexpr size_t kRowFloats = kTableIds * static_cast<size_t>(kTableWidth);

OptimizerSpec AdagradSpec() {
  return {"adagrad", {{"lr", 0.01}}};
}

// The common base of the three cases: the ids, and floors over separate memory.
class RowsWorkload : public Workload {
 protected:
  explicit RowsWorkload(int steps) : steps_(steps) {}

  absl::StatusOr<std::vector<double>> RunPsd() final {
    return TimeEach(steps_, [this] { return Step(); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() final {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds, TimeEach(steps_, [this] {
                           FloorStep();
                           return absl::OkStatus();
                         }));
    return Median(seconds);
  }
  virtual absl::Status Step() = 0;
  virtual void FloorStep() = 0;

  void ReadFloor() { RowsRead(table_.data(), ids_, rows_.data()); }
  void UpdateFloor() { RowsUpdate(table_.data(), sums_.data(), ids_, rows_.data()); }
  Tensor Ids() const {
    return Tensor::Of<int64_t>({static_cast<int64_t>(ids_.size())}, absl::MakeConstSpan(ids_));
  }

 private:
  const int steps_;  // in a block
  const std::vector<int64_t> ids_ = SkewedIds();
  MappedFloats table_{kTableFloats}, sums_{kTableFloats}, rows_{kRowFloats};
};

// A store in this process that has the table.
class LocalRows : public RowsWorkload {
 public:
  absl::Status Start(const Environment&) override {
    store::StoreOptions options;
    options.memory = MemoryAccount::Create(0, NewHeapAllocator());
    store_ = store::Store::Create(std::move(options), source_);
    PSD_ASSIGN_OR_RETURN(Tensor elements, Tensor::Full({kTableRows, kTableWidth}, DType::kF32, 0.5,
                                                       &store_->memory()));
    PSD_ASSIGN_OR_RETURN(table_, store::Rows::Create(std::move(elements), /*requires_grad=*/true));
    PSD_ASSIGN_OR_RETURN(entry_,
                         store_->Put(store::Value(std::shared_ptr<store::Object>(table_)), false));
    return absl::OkStatus();
  }

 protected:
  LocalRows() : RowsWorkload(10) {}

  IdSource source_{NewIncarnation()};
  std::unique_ptr<store::Store> store_;
  std::shared_ptr<store::Rows> table_;
  store::EntryPtr entry_;
};

class LookupWorkload : public LocalRows {
  absl::Status Step() override { return table_->Read(Ids()).status(); }
  void FloorStep() override { ReadFloor(); }
};

class UpdateWorkload : public LocalRows {
  absl::Status Start(const Environment& environment) override {
    PSD_RETURN_IF_ERROR(LocalRows::Start(environment));
    changes_ = std::make_unique<change::Changes>(
        change::Changes::Uses{*store_, registry_, limits_, *budget_, {}});
    std::vector<optim::ParameterGroup> groups(1);
    groups[0].spec = AdagradSpec();
    groups[0].parameters = {entry_};
    PSD_ASSIGN_OR_RETURN(optimizer_, optim::OwnerOptimizer::Create(std::move(groups), {}, registry_,
                                                                   *store_, *changes_));
    const Tensor ids = Ids();
    PSD_ASSIGN_OR_RETURN(const Tensor indices,
                         Tensor::FromBuffer({1, ids.NumElements()}, DType::kI64, ids.AsBuffer()));
    PSD_ASSIGN_OR_RETURN(const Tensor values,
                         Tensor::Full({ids.NumElements(), kTableWidth}, DType::kF32, 1e-3));
    PSD_ASSIGN_OR_RETURN(gradient_, SparseTensor::Create(table_->shape(), indices, values));
    return Step();
  }
  absl::Status Step() override {
    std::vector<optim::ParameterGradient> gradients;
    gradients.push_back({entry_->id, Tensor(), 0, {gradient_}});
    Promise<Unit> stepped;
    optim::StepRequest request;
    request.step_id = source_.Next();
    PSD_ASSIGN_OR_RETURN(request.plan, optimizer_->table().Plan(std::move(gradients)));
    request.done = [stepped](const absl::StatusOr<optim::StepResult>& result) {
      stepped.Set(result.ok() ? absl::StatusOr<Unit>(Unit{}) : result.status());
    };
    optimizer_->Step(std::move(request));
    return stepped.future().Wait().status();
  }
  void FloorStep() override { UpdateFloor(); }

  const optim::OptimizerRegistry registry_ = optim::OptimizerRegistry::Builtin();
  const program::ProgramLimits limits_ = {};
  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(0);
  std::unique_ptr<change::Changes> changes_;
  std::shared_ptr<optim::OwnerOptimizer> optimizer_;
  SparseTensor gradient_;
};

class EmbeddingWorkload : public RowsWorkload {
 public:
  EmbeddingWorkload() : RowsWorkload(5) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    CreateOptions options;
    options.requires_grad = true;
    options.rows = true;
    PSD_ASSIGN_OR_RETURN(table_, job_->worker().GetOrCreate(
                                     kOwner, "embedding",
                                     Uniform({kTableRows, kTableWidth}, -0.1, 0.1, 1), options));
    const std::vector<RRef> tables = {table_};
    PSD_ASSIGN_OR_RETURN(
        optimizer_, DistributedOptimizer::Create(job_->worker(), "main", AdagradSpec(), tables));
    for (int i = 0; i < 2; ++i) PSD_RETURN_IF_ERROR(Step());
    return absl::OkStatus();
  }

 protected:
  absl::Status Step() override {
    PSD_ASSIGN_OR_RETURN(Context context, job_->worker().NewContext());
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> rows,
                         job_->worker().LookUpRows({{table_, ids_}}, context));
    PSD_RETURN_IF_ERROR(context.Backward({Sum(rows[0]) * 1e-3}));
    return optimizer_->Step(context);
  }
  void FloorStep() override {
    ReadFloor();
    UpdateFloor();
  }

 private:
  std::unique_ptr<Job> job_;
  RRef table_;
  const Tensor ids_ = Ids();
  std::unique_ptr<DistributedOptimizer> optimizer_;  // ends before its job
};

template <typename T>
Case RowsCase(const std::string& name, bool sends) {
  Case one;
  one.name = name;
  one.sends = sends;
  one.unit = {"ms", 1e3};
  one.make = [] { return std::make_unique<T>(); };
  return one;
}

}  // namespace

std::vector<Case> RowsCases() {
  return {RowsCase<LookupWorkload>("rows_lookup", /*sends=*/false),
          RowsCase<UpdateWorkload>("rows_update", /*sends=*/false),
          RowsCase<EmbeddingWorkload>("embedding", /*sends=*/true)};
}

}  // namespace psd::bench
