#include "core/dist_autograd/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/sum.h"

namespace psd::dist_autograd {
namespace {

// Errors: INVALID_ARGUMENT unless `gradient` has the shape and dtype of the gradients collected
// before.
template <typename Gradient>
absl::Status CheckSame(const LeafGradient& before, const Gradient& gradient) {
  const auto check = [&](const auto& stored) -> absl::Status {
    const DType dtype = before.rounds_to.value_or(stored.dtype());
    if (stored.shape() == gradient.shape() && dtype == gradient.dtype()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("a gradient ", gradient.ToString(), " for leaf ", before.key.ToString(),
                     ", of which this context has ", DTypeName(dtype), stored.shape().ToString()));
  };
  return before.gradient.defined() ? check(before.gradient) : check(before.sparse[0]);
}

constexpr size_t kManyGradients = 64;
// The charge for the entry of a gradient, and for one part of a sparse gradient, without their
// elements.
constexpr size_t kEntryBytes = 256;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<Tensor> DenseSum(const LeafGradient& gradient) {
  if (gradient.gradient.defined()) return gradient.gradient;
  PSD_ASSIGN_OR_RETURN(SparseTensor sparse, ConcatSparse(gradient.sparse));
  if (FaultOn("sparse_before_dense_lost")) return Tensor::Zeros(sparse.shape(), sparse.dtype());
  return sparse.ToDense();
}

bool IsNone(const LeafGradient& gradient) {
  return !gradient.gradient.defined() && gradient.sparse.empty();
}

// Returns one element for each leaf, without its gradients, sorted by key.
std::vector<LeafGradient> LeavesOf(const std::vector<std::pair<LeafInfo, Tensor>>& dense,
                                   const std::vector<std::pair<LeafInfo, SparseTensor>>& sparse) {
  std::vector<GlobalId> keys;
  for (const auto& [leaf, gradient] : dense) keys.push_back(leaf.key);
  for (const auto& [leaf, gradient] : sparse) keys.push_back(leaf.key);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::vector<LeafGradient> leaves(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) leaves[i].key = keys[i];
  return leaves;
}

// A backward that walks from the end meets the leaves from the last to the first.
template <typename Gradients>
void ReverseIfDescending(Gradients& gradients) {
  if (!gradients.empty() && gradients.back().first.key < gradients.front().first.key)
    std::reverse(gradients.begin(), gradients.end());
}

// Whether each key is greater than the one before it.
template <typename Gradients>
bool Ascends(const Gradients& gradients) {
  const auto stops = [](const auto& a, const auto& b) { return !(a.first.key < b.first.key); };
  return std::adjacent_find(gradients.begin(), gradients.end(), stops) == gradients.end();
}

// Requires: `dense` ascends.
bool ShareALeaf(const std::vector<std::pair<LeafInfo, Tensor>>& dense,
                const std::vector<std::pair<LeafInfo, SparseTensor>>& sparse) {
  return std::any_of(sparse.begin(), sparse.end(), [&dense](const auto& each) {
    const GlobalId key = each.first.key;
    const auto place = std::lower_bound(
        dense.begin(), dense.end(), key,
        [](const auto& gradient, GlobalId wanted) { return gradient.first.key < wanted; });
    return place != dense.end() && place->first.key == key;
  });
}

// Returns the sum for `leaf`. Requires: `sums` has one.
LeafGradient& SumOf(const LeafInfo& leaf, std::vector<LeafGradient>& sums) {
  return *std::lower_bound(sums.begin(), sums.end(), leaf.key,
                           [](const LeafGradient& sum, GlobalId key) { return sum.key < key; });
}

void AddVersion(const LeafInfo& leaf, LeafGradient& sum) {
  if (IsNone(sum)) {
    sum.version = leaf.version;
  } else {
    sum.version.Add(leaf.version);
  }
}

absl::Status AddDense(const LeafInfo& leaf, const Tensor& gradient, LeafGradient& sum) {
  Tensor added = gradient;
  if (!IsNone(sum)) {
    PSD_RETURN_IF_ERROR(CheckSame(sum, gradient));
    PSD_ASSIGN_OR_RETURN(const Tensor before, DenseSum(sum));
    PSD_ASSIGN_OR_RETURN(added, ops::AddToSumWhereRoom(before, gradient));
    if (added.dtype() != gradient.dtype()) sum.rounds_to = gradient.dtype();
  }
  AddVersion(leaf, sum);
  sum.gradient = std::move(added);
  sum.sparse.clear();
  return absl::OkStatus();
}

absl::Status AddSparse(const LeafInfo& leaf, const SparseTensor& gradient, LeafGradient& sum) {
  if (!IsNone(sum)) PSD_RETURN_IF_ERROR(CheckSame(sum, gradient));
  if (sum.gradient.defined()) {
    PSD_ASSIGN_OR_RETURN(const Tensor dense, gradient.ToDense());
    return AddDense(leaf, dense, sum);
  }
  AddVersion(leaf, sum);
  sum.sparse.push_back(gradient);
  return absl::OkStatus();
}

// Whether `now` is still the gradient that was read as `before`. Comparing addresses is enough,
// because `before` holds the elements, so that their memory cannot have been reused.
bool Unchanged(const LeafGradient& before, const LeafGradient& now) {
  if (before.gradient.defined() != now.gradient.defined()) return false;
  if (!now.gradient.defined()) return before.sparse.size() == now.sparse.size();
  return before.gradient.address() == now.gradient.address();
}

}  // namespace

void ContextState::AddKnownWorker(const std::string& peer) {
  MutexLock lock(mutex_);
  if (!Contains(known_workers_, peer)) known_workers_.push_back(peer);
}

bool ContextState::AddCallee(const std::string& callee) {
  AddKnownWorker(callee);
  MutexLock lock(mutex_);
  return callees_.try_emplace(callee).second;
}

rref::SessionKey ContextState::SessionOn(const std::string& callee) const {
  MutexLock lock(mutex_);
  const auto known = callees_.find(callee);
  return known != callees_.end() ? known->second : rref::SessionKey();
}

void ContextState::SetSession(const std::string& callee, rref::SessionKey session) {
  MutexLock lock(mutex_);
  auto known = callees_.find(callee);
  if (known != callees_.end() && known->second.epoch == 0) known->second = session;
}

void ContextState::LoseSession(const std::string& peer, rref::SessionKey session,
                               const absl::Status& reason) {
  MutexLock lock(mutex_);
  const auto callee = callees_.find(peer);
  if (callee == callees_.end() || FaultOn("lost_session_ignored")) return;
  if (callee->second.epoch == 0 || callee->second == session) usable_.Update(reason);
}

absl::Status ContextState::usable() const {
  MutexLock lock(mutex_);
  return usable_;
}

std::vector<std::string> ContextState::KnownWorkers() const {
  MutexLock lock(mutex_);
  return known_workers_;
}

void ContextState::AddReached(const std::vector<std::string>& workers) {
  MutexLock lock(mutex_);
  for (const std::string& worker : workers) {
    if (reached_.size() == kMaxReachedWorkers) return;
    if (!Contains(known_workers_, worker) && !Contains(reached_, worker))
      reached_.push_back(worker);
  }
}

std::vector<std::string> ContextState::Reached() const {
  MutexLock lock(mutex_);
  std::vector<std::string> all = known_workers_;
  for (const std::string& worker : reached_)
    if (!Contains(known_workers_, worker)) all.push_back(worker);
  return all;
}

absl::StatusOr<std::shared_ptr<SendFunction>> ContextState::AddSend(
    const std::vector<Variable>& variables) {
  return Keep(std::make_shared<SendFunction>(ids_.Next(), variables));
}

absl::StatusOr<std::shared_ptr<SendFunction>> ContextState::AddSend(std::vector<LeafInfo> leaves,
                                                                    Device* device) {
  return Keep(std::make_shared<SendFunction>(ids_.Next(), std::move(leaves), device));
}

absl::Status ContextState::Charge(size_t bytes) {
  if (memory_ == nullptr) return absl::OkStatus();
  const bool modest = charge_.bytes() + bytes <= modest_bytes_;
  const absl::Status charged =
      charge_.Add(modest ? *memory_->essential() : *memory_->transit(), bytes);
  return charged.ok() ? charged
                      : Annotate(charged, absl::StrCat("autograd context ", id_.ToString()));
}

absl::StatusOr<std::shared_ptr<SendFunction>> ContextState::Keep(
    std::shared_ptr<SendFunction> send) {
  const size_t bytes = sizeof(SendFunction) +
                       static_cast<size_t>(send->NumInputs()) * (sizeof(LeafInfo) + kEntryBytes);
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(Charge(bytes));
  sends_[send->message()] = send;
  return send;
}

absl::StatusOr<std::shared_ptr<SendFunction>> ContextState::FindSend(GlobalId message) const {
  MutexLock lock(mutex_);
  auto it = sends_.find(message);
  if (it != sends_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("no message ", message.ToString(),
                                          " with gradients left in autograd context ",
                                          id_.ToString()));
}

std::vector<std::shared_ptr<SendFunction>> ContextState::Sends() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<SendFunction>> sends;
  sends.reserve(sends_.size());
  for (const auto& [message, send] : sends_) sends.push_back(send);
  return sends;
}

void ContextState::CountRecv(bool from_self) {
  MutexLock lock(mutex_);
  ++recvs_;
  recvs_from_self_ |= from_self;
}

size_t ContextState::NumRecvs() const {
  MutexLock lock(mutex_);
  return recvs_;
}

bool ContextState::HasRecvsFromSelf() const {
  MutexLock lock(mutex_);
  return recvs_from_self_;
}

absl::Status ContextState::Accumulate(const LeafInfo& leaf, Tensor gradient) {
  return AccumulateAll({{leaf, std::move(gradient)}}, {});
}

absl::Status ContextState::AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) {
  return AccumulateAll({}, {{leaf, std::move(gradient)}});
}

absl::Status ContextState::AccumulateAll(std::vector<std::pair<LeafInfo, Tensor>> dense,
                                         std::vector<std::pair<LeafInfo, SparseTensor>> sparse) {
  if (dense.empty() && sparse.empty()) return absl::OkStatus();
  ReverseIfDescending(dense);
  ReverseIfDescending(sparse);
  PSD_ASSIGN_OR_RETURN(const bool first, TakeFirst(dense, sparse));
  if (first) return absl::OkStatus();
  while (true) {
    std::vector<LeafGradient> sums = LeavesOf(dense, sparse);
    const std::vector<LeafGradient> before = Collected(sums);
    sums = before;
    for (const auto& [leaf, gradient] : dense)
      PSD_RETURN_IF_ERROR(AddDense(leaf, gradient, SumOf(leaf, sums)));
    for (const auto& [leaf, gradient] : sparse)
      PSD_RETURN_IF_ERROR(AddSparse(leaf, gradient, SumOf(leaf, sums)));
    PSD_ASSIGN_OR_RETURN(const bool replaced, Replace(before, sums));
    if (replaced) return absl::OkStatus();
  }
}

absl::StatusOr<bool> ContextState::TakeFirst(
    std::vector<std::pair<LeafInfo, Tensor>>& dense,
    std::vector<std::pair<LeafInfo, SparseTensor>>& sparse) {
  if (!Ascends(dense) || !Ascends(sparse) || ShareALeaf(dense, sparse)) return false;
  MutexLock lock(mutex_);
  if (gradients_->size() > 0) return false;
  PSD_RETURN_IF_ERROR(Charge((dense.size() + sparse.size()) * kEntryBytes));
  has_device_gradients_ = std::any_of(dense.begin(), dense.end(),
                                      [](const auto& each) { return !each.second.OnHost(); });
  LeafGradients& own = OwnGradients();
  own.Reserve(dense.size() + sparse.size());
  const auto add = [&own](const LeafInfo& leaf) -> LeafGradient& {
    LeafGradient& now = *own.TryAdd(leaf.key).first;
    now.version = leaf.version;
    return now;
  };
  // The first sparse gradient whose leaf is not before the present dense one.
  auto next = sparse.begin();
  for (auto& [leaf, gradient] : dense) {
    for (; next != sparse.end() && next->first.key < leaf.key; ++next)
      add(next->first).sparse.push_back(std::move(next->second));
    add(leaf).gradient = std::move(gradient);
  }
  for (; next != sparse.end(); ++next) add(next->first).sparse.push_back(std::move(next->second));
  return true;
}

std::vector<LeafGradient> ContextState::Collected(const std::vector<LeafGradient>& leaves) const {
  std::vector<LeafGradient> collected = leaves;
  MutexLock lock(mutex_);
  for (LeafGradient& each : collected)
    if (const LeafGradient* found = gradients_->Find(each.key); found != nullptr) each = *found;
  return collected;
}

absl::StatusOr<bool> ContextState::Replace(const std::vector<LeafGradient>& before,
                                           std::vector<LeafGradient>& after) {
  MutexLock lock(mutex_);
  size_t entries = 0;  // the number of new entries
  for (size_t i = 0; i < before.size(); ++i) {
    const LeafGradient* now = gradients_->Find(before[i].key);
    if (!Unchanged(before[i], now == nullptr ? LeafGradient() : *now)) return false;
    entries += (now == nullptr ? 1 : 0) + after[i].sparse.size();
    entries -= std::min(entries, before[i].sparse.size());
  }
  PSD_RETURN_IF_ERROR(Charge(entries * kEntryBytes));
  LeafGradients& own = OwnGradients();
  own.Reserve(after.size());
  for (LeafGradient& each : after) {
    has_device_gradients_ |= each.gradient.defined() && !each.gradient.OnHost();
    *own.TryAdd(each.key).first = std::move(each);
  }
  return true;
}

bool ContextState::HandOver(const std::vector<LeafGradient>& leaves) {
  MutexLock lock(mutex_);
  for (const LeafGradient& leaf : leaves)
    if (handed_over_.contains(leaf.key)) return false;
  for (const LeafGradient& leaf : leaves) handed_over_.insert(leaf.key);
  return true;
}

void ContextState::TakeBack(const std::vector<LeafGradient>& leaves) {
  MutexLock lock(mutex_);
  for (const LeafGradient& leaf : leaves) handed_over_.erase(leaf.key);
}

std::shared_ptr<const LeafGradients> ContextState::Gradients() {
  MutexLock lock(mutex_);
  gradients_shared_ = true;
  return gradients_;
}

LeafGradients& ContextState::OwnGradients() {
  if (std::exchange(gradients_shared_, false))
    gradients_ = std::make_shared<LeafGradients>(*gradients_);
  return *gradients_;
}

absl::StatusOr<LeafGradient> ContextState::Gradient(GlobalId key) const {
  PSD_ASSIGN_OR_RETURN(LeafGradient gradient, Sum(key));
  if (!gradient.rounds_to.has_value()) return gradient;
  PSD_ASSIGN_OR_RETURN(gradient.gradient,
                       ops::RoundSumWhereRoom(gradient.gradient, *gradient.rounds_to));
  gradient.rounds_to.reset();
  return gradient;
}

absl::StatusOr<LeafGradient> ContextState::Sum(GlobalId key) const {
  MutexLock lock(mutex_);
  if (const LeafGradient* found = gradients_->Find(key); found != nullptr) return *found;
  return absl::NotFoundError(absl::StrCat("autograd context ", id_.ToString(),
                                          " has no gradient for leaf ", key.ToString(),
                                          ": no loss depended on it"));
}

bool ContextState::HasDeviceGradients() const {
  MutexLock lock(mutex_);
  return has_device_gradients_;
}

bool ContextState::IsLarge() const {
  MutexLock lock(mutex_);
  return gradients_->size() >= kManyGradients;
}

ContextState::Stats ContextState::stats() const {
  MutexLock lock(mutex_);
  Stats stats;
  stats.sends = sends_.size();
  stats.recvs = recvs_;
  stats.gradients = gradients_->size();
  stats.known_workers = known_workers_.size();
  gradients_->ForEach([&](const LeafGradient& gradient) {
    stats.gradient_bytes += gradient.gradient.defined() ? gradient.gradient.NumBytes() : 0;
    for (const SparseTensor& part : gradient.sparse) stats.gradient_bytes += part.NumBytes();
  });
  return stats;
}

}  // namespace psd::dist_autograd
