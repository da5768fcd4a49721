#include "core/optim/owner_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/optim/step_log.h"

namespace psd::optim {
namespace {

using store::EntryPtr;
using store::Parameter;

// One parameter with its state. The state belongs to whoever holds the optimizer's write claim.
struct Stepped {
  EntryPtr entry;
  Parameter* parameter = nullptr;  // the entry's
  absl::InlinedVector<std::shared_ptr<Block>, 2> blocks;
  absl::InlinedVector<std::byte*, 3> state;  // the blocks' data
  int64_t steps = 0;
};

// A step between its check and its end.
struct Request {
  GlobalId step_id;
  std::vector<ParameterGradient> gradients;  // dense, in the order of the optimizer's parameters
  std::vector<size_t> indices;               // of each gradient's parameter
  absl::AnyInvocable<bool()> begin_apply;
  absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done;
};

template <typename T>
void Fill(Block& block, double value) {
  T* elements = reinterpret_cast<T*>(block.data());
  std::fill(elements, elements + block.size() / sizeof(T), static_cast<T>(value));
}

class OwnerOptimizerImpl : public OwnerOptimizer,
                           public std::enable_shared_from_this<OwnerOptimizerImpl> {
 public:
  OwnerOptimizerImpl(std::unique_ptr<FunctionalOptimizer> function, store::Store& store)
      : function_(std::move(function)), store_(store), claim_id_(store.NewId()) {}
  ~OwnerOptimizerImpl() override {
    for (Stepped& stepped : parameters_) stepped.parameter->ReleaseFromSteps();
  }

  // Takes over `parameters`, in the order of their ids. Once, before anything else.
  absl::Status Init(std::vector<EntryPtr> parameters);

  std::string TypeName() const override { return absl::StrCat("optimizer/", spec().type); }
  const OptimizerSpec& spec() const override { return function_->spec(); }
  std::vector<GlobalId> parameters() const override { return order_; }
  bool Steps(GlobalId parameter) const override { return index_.contains(parameter); }
  void Step(GlobalId step_id, std::vector<ParameterGradient> gradients,
            absl::AnyInvocable<bool()> begin_apply,
            absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) override;
  Stats stats() const override PSD_EXCLUDES(mutex_);

 private:
  absl::Status CheckParameter(const EntryPtr& entry) const;
  absl::Status AddParameter(EntryPtr entry);
  absl::Status AddState(Stepped& stepped, const StateSlot& slot);

  // Finds the parameters of the gradients, puts both in order, and checks everything.
  absl::Status Prepare(Request& request) const;
  absl::Status CheckGradient(const Stepped& stepped, const Tensor& gradient) const;
  std::vector<GlobalId> ClaimedIds(const Request& request) const;

  // With the claim granted.
  absl::StatusOr<StepResult> Apply(Request& request) PSD_EXCLUDES(mutex_);
  void RunKernels(const Request& request, absl::Span<const Parameter::Write> writes);
  StepResult Record(const Request& request, absl::Span<const Parameter::Write> writes)
      PSD_EXCLUDES(mutex_);

  const std::unique_ptr<FunctionalOptimizer> function_;
  store::Store& store_;
  const GlobalId claim_id_;  // claimed by every step: steps of one optimizer are serial

  // Fixed after Init, but for the state within.
  std::vector<Stepped> parameters_;
  std::vector<GlobalId> order_;  // of parameters_: ascending
  absl::flat_hash_map<GlobalId, size_t> index_;
  size_t state_bytes_ = 0;

  mutable Mutex mutex_;  // leaf
  StepLog applied_ PSD_GUARDED_BY(mutex_){kRememberedSteps};
  uint64_t steps_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t max_staleness_ PSD_GUARDED_BY(mutex_) = 0;
  double staleness_sum_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t staleness_count_ PSD_GUARDED_BY(mutex_) = 0;
};

absl::Status OwnerOptimizerImpl::Init(std::vector<EntryPtr> parameters) {
  for (const EntryPtr& entry : parameters) PSD_RETURN_IF_ERROR(CheckParameter(entry));
  std::sort(parameters.begin(), parameters.end(),
            [](const EntryPtr& a, const EntryPtr& b) { return a->id < b->id; });
  parameters_.reserve(parameters.size());
  for (EntryPtr& entry : parameters) {
    const std::string label = entry->Label();
    absl::Status added = AddParameter(std::move(entry));
    if (!added.ok()) return Annotate(added, absl::StrCat(spec().type, " for ", label));
  }
  return absl::OkStatus();
}

absl::Status OwnerOptimizerImpl::CheckParameter(const EntryPtr& entry) const {
  if (entry->parameter == nullptr || !entry->parameter->requires_grad()) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry->Label(), " is a ", entry->KindName(),
                     entry->parameter == nullptr ? "" : " that does not require grad", ", and ",
                     spec().type, " steps parameters that do; create it with requires_grad"));
  }
  return Annotate(function_->CheckDType(entry->parameter->dtype()), entry->Label());
}

absl::Status OwnerOptimizerImpl::AddParameter(EntryPtr entry) {
  if (!index_.emplace(entry->id, parameters_.size()).second)
    return absl::InvalidArgumentError("it is among the parameters twice; name it once");
  PSD_RETURN_IF_ERROR(entry->parameter->AcquireForSteps());
  order_.push_back(entry->id);
  Stepped& stepped = parameters_.emplace_back();
  stepped.parameter = entry->parameter.get();
  stepped.entry = std::move(entry);
  for (const StateSlot& slot : function_->Slots(stepped.parameter->dtype()))
    PSD_RETURN_IF_ERROR(AddState(stepped, slot));
  return absl::OkStatus();
}

absl::Status OwnerOptimizerImpl::AddState(Stepped& stepped, const StateSlot& slot) {
  const auto elements = static_cast<size_t>(stepped.parameter->shape().NumElements());
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                       store_.memory().Allocate(elements * ItemSize(slot.dtype)));
  PSD_CHECK(slot.dtype == DType::kF32 || slot.dtype == DType::kF64,
            "optimizer state is f32 or f64");
  slot.dtype == DType::kF32 ? Fill<float>(*block, slot.initial)
                            : Fill<double>(*block, slot.initial);
  state_bytes_ += block->size();
  stepped.state.push_back(block->data());
  stepped.blocks.push_back(std::move(block));
  return absl::OkStatus();
}

absl::Status OwnerOptimizerImpl::CheckGradient(const Stepped& stepped,
                                               const Tensor& gradient) const {
  const Parameter& parameter = *stepped.parameter;
  const bool fits = gradient.defined() && gradient.dtype() == parameter.dtype() &&
                    gradient.device().IsCpu() && gradient.shape() == parameter.shape();
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the gradient for ", stepped.entry->Label(), " must be ", DTypeName(parameter.dtype()),
      parameter.shape().ToString(), " on the cpu, not ", gradient.ToString()));
}

absl::Status OwnerOptimizerImpl::Prepare(Request& request) const {
  std::vector<ParameterGradient>& gradients = request.gradients;
  const auto id_less = [](const ParameterGradient& a, const ParameterGradient& b) {
    return a.parameter < b.parameter;
  };
  if (!std::is_sorted(gradients.begin(), gradients.end(), id_less))
    std::sort(gradients.begin(), gradients.end(), id_less);
  request.indices.reserve(gradients.size());
  for (ParameterGradient& each : gradients) {
    auto found = index_.find(each.parameter);
    if (found == index_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a gradient for value ", each.parameter.ToString(), ", which is none of the ",
          parameters_.size(), " parameters of this ", spec().type, " optimizer"));
    }
    const Stepped& stepped = parameters_[found->second];
    if (!request.indices.empty() && request.indices.back() == found->second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two gradients for ", stepped.entry->Label(), "; sum them first"));
    }
    PSD_RETURN_IF_ERROR(CheckGradient(stepped, each.gradient));
    if (!each.gradient.IsContiguous()) {
      PSD_ASSIGN_OR_RETURN(each.gradient, each.gradient.Contiguous());
    }
    request.indices.push_back(found->second);
  }
  return absl::OkStatus();
}

std::vector<GlobalId> OwnerOptimizerImpl::ClaimedIds(const Request& request) const {
  std::vector<GlobalId> ids;
  ids.reserve(request.gradients.size() + 1);
  for (const ParameterGradient& each : request.gradients) ids.push_back(each.parameter);
  ids.insert(std::lower_bound(ids.begin(), ids.end(), claim_id_), claim_id_);
  return ids;
}

void OwnerOptimizerImpl::Step(GlobalId step_id, std::vector<ParameterGradient> gradients,
                              absl::AnyInvocable<bool()> begin_apply,
                              absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) {
  auto request = std::make_unique<Request>();
  request->step_id = step_id;
  request->gradients = std::move(gradients);
  request->begin_apply = std::move(begin_apply);
  request->done = std::move(done);
  if (absl::Status prepared = Prepare(*request); !prepared.ok()) {
    request->done(std::move(prepared));
    return;
  }
  std::vector<GlobalId> ids = ClaimedIds(*request);
  store_.write_claims().Claim(
      std::move(ids),
      [self = shared_from_this(), request = std::move(request)](store::WriteClaims::ClaimId claim) {
        absl::StatusOr<StepResult> result = self->Apply(*request);
        request->gradients.clear();
        self->store_.write_claims().Release(claim);
        request->done(std::move(result));
      });
}

absl::StatusOr<StepResult> OwnerOptimizerImpl::Apply(Request& request) {
  {
    MutexLock lock(mutex_);
    if (applied_.Contains(request.step_id)) {
      StepResult result;
      result.steps_accepted = steps_;
      result.repeated = true;
      return result;
    }
  }
  std::vector<Parameter*> parameters;
  parameters.reserve(request.indices.size());
  for (size_t index : request.indices) parameters.push_back(parameters_[index].parameter);
  const std::vector<Parameter::Write> writes = Parameter::BeginWrite(parameters);
  if (request.begin_apply != nullptr && !request.begin_apply()) {
    Parameter::AbandonWrite(parameters);
    return absl::CancelledError("the step was cancelled before it changed anything");
  }
  RunKernels(request, writes);
  Parameter::Publish(parameters);
  return Record(request, writes);
}

// Every parameter by itself: nothing here depends on the order.
void OwnerOptimizerImpl::RunKernels(const Request& request,
                                    absl::Span<const Parameter::Write> writes) {
  for (size_t i = 0; i < writes.size(); ++i) {
    Stepped& stepped = parameters_[request.indices[i]];
    const Tensor& gradient = request.gradients[i].gradient;
    StepArrays arrays;
    arrays.parameter = writes[i].current;
    arrays.next = writes[i].spare;
    arrays.gradient = gradient.raw_data();
    arrays.state = absl::MakeConstSpan(stepped.state);
    arrays.elements = gradient.NumElements();
    arrays.dtype = gradient.dtype();
    arrays.step = ++stepped.steps;
    function_->Apply(arrays);
  }
}

StepResult OwnerOptimizerImpl::Record(const Request& request,
                                      absl::Span<const Parameter::Write> writes) {
  StepResult result;
  result.parameters_stepped = static_cast<int>(writes.size());
  uint64_t sum = 0, count = 0;
  for (size_t i = 0; i < writes.size(); ++i) {
    const uint64_t read = request.gradients[i].version;
    if (read == 0 || read > writes[i].version) continue;  // unknown, or no version of ours
    const uint64_t staleness = writes[i].version - read;
    result.max_staleness = std::max(result.max_staleness, staleness);
    sum += staleness;
    ++count;
  }
  MutexLock lock(mutex_);
  applied_.Add(request.step_id);
  result.steps_accepted = ++steps_;
  max_staleness_ = std::max(max_staleness_, result.max_staleness);
  staleness_sum_ += static_cast<double>(sum);
  staleness_count_ += count;
  return result;
}

OwnerOptimizer::Stats OwnerOptimizerImpl::stats() const {
  Stats stats;
  stats.state_bytes = state_bytes_;
  MutexLock lock(mutex_);
  stats.steps = steps_;
  stats.max_staleness = max_staleness_;
  if (staleness_count_ > 0)
    stats.mean_staleness = staleness_sum_ / static_cast<double>(staleness_count_);
  return stats;
}

}  // namespace

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> OwnerOptimizer::Create(
    std::unique_ptr<FunctionalOptimizer> function, std::vector<EntryPtr> parameters,
    store::Store& store) {
  auto optimizer = std::make_shared<OwnerOptimizerImpl>(std::move(function), store);
  PSD_RETURN_IF_ERROR(optimizer->Init(std::move(parameters)));
  return std::shared_ptr<OwnerOptimizer>(std::move(optimizer));
}

}  // namespace psd::optim
