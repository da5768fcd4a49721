#include "core/dist_autograd/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"

namespace psd::dist_autograd {
namespace {

// Errors: INVALID_ARGUMENT unless `gradient` has the shape and dtype of what was collected before.
template <typename Gradient>
absl::Status CheckSame(const LeafGradient& before, const Gradient& gradient) {
  const auto check = [&](const auto& stored) -> absl::Status {
    if (stored.shape() == gradient.shape() && stored.dtype() == gradient.dtype())
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("a gradient ", gradient.ToString(), " for leaf ", before.key.ToString(),
                     ", of which this context has ", stored.ToString()));
  };
  return before.gradient.defined() ? check(before.gradient) : check(before.sparse[0]);
}

constexpr size_t kManyGradients = 64;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<Tensor> DenseSum(const LeafGradient& gradient) {
  if (gradient.gradient.defined()) return gradient.gradient;
  PSD_ASSIGN_OR_RETURN(SparseTensor sparse, ConcatSparse(gradient.sparse));
  if (FaultOn("sparse_before_dense_lost")) return Tensor::Zeros(sparse.shape(), sparse.dtype());
  return sparse.ToDense();
}

// Whether `now` is what was read as `before`, which holds its elements: nobody else can have got
// their place in memory since.
bool Unchanged(const LeafGradient& before, const LeafGradient& now) {
  if (before.gradient.defined() != now.gradient.defined()) return false;
  if (!now.gradient.defined()) return before.sparse.size() == now.sparse.size();
  return before.gradient.raw_data() == now.gradient.raw_data();
}

}  // namespace

void ContextState::AddKnownWorker(const std::string& peer) {
  MutexLock lock(mutex_);
  if (!Contains(known_workers_, peer)) known_workers_.push_back(peer);
}

void ContextState::AddCallee(const std::string& callee) {
  AddKnownWorker(callee);
  MutexLock lock(mutex_);
  if (!Contains(callees_, callee)) callees_.push_back(callee);
}

void ContextState::LoseSession(const std::string& peer, const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (Contains(callees_, peer) && !FaultOn("lost_session_ignored")) usable_.Update(reason);
}

absl::Status ContextState::usable() const {
  MutexLock lock(mutex_);
  return usable_;
}

std::vector<std::string> ContextState::KnownWorkers() const {
  MutexLock lock(mutex_);
  return known_workers_;
}

std::shared_ptr<SendFunction> ContextState::AddSend(const std::vector<Variable>& variables) {
  return Keep(std::make_shared<SendFunction>(ids_.Next(), variables));
}

std::shared_ptr<SendFunction> ContextState::AddSend(std::vector<LeafInfo> leaves) {
  return Keep(std::make_shared<SendFunction>(ids_.Next(), std::move(leaves)));
}

std::shared_ptr<SendFunction> ContextState::Keep(std::shared_ptr<SendFunction> send) {
  MutexLock lock(mutex_);
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
  while (true) {
    LeafGradient before;
    {
      MutexLock lock(mutex_);
      const auto [now, added] = OwnGradients().TryAdd(leaf.key);
      if (added) {
        now->version = leaf.version;
        now->gradient = std::move(gradient);
        return absl::OkStatus();
      }
      before = *now;
    }
    PSD_RETURN_IF_ERROR(CheckSame(before, gradient));
    PSD_ASSIGN_OR_RETURN(Tensor dense, DenseSum(before));
    PSD_ASSIGN_OR_RETURN(dense, ops::Add(dense, gradient));
    if (Replace(before, std::move(dense), leaf.version)) return absl::OkStatus();
  }
}

absl::Status ContextState::AccumulateAll(std::vector<std::pair<LeafInfo, Tensor>> gradients) {
  std::vector<std::pair<LeafInfo, Tensor>> again;  // leaves that have a gradient already
  // A backward that walks from the end meets the leaves from the last to the first.
  if (!gradients.empty() && gradients.back().first.key < gradients.front().first.key) {
    std::reverse(gradients.begin(), gradients.end());
  }
  {
    MutexLock lock(mutex_);
    LeafGradients& own = OwnGradients();
    own.Reserve(gradients.size());
    for (auto& [leaf, gradient] : gradients) {
      const auto [now, added] = own.TryAdd(leaf.key);
      if (added) {
        now->version = leaf.version;
        now->gradient = std::move(gradient);
      } else {
        again.emplace_back(std::move(leaf), std::move(gradient));
      }
    }
  }
  for (auto& [leaf, gradient] : again) PSD_RETURN_IF_ERROR(Accumulate(leaf, std::move(gradient)));
  return absl::OkStatus();
}

absl::Status ContextState::AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) {
  while (true) {
    LeafGradient before;
    {
      MutexLock lock(mutex_);
      const auto [now, added] = OwnGradients().TryAdd(leaf.key);
      if (!added) PSD_RETURN_IF_ERROR(CheckSame(*now, gradient));
      if (!now->gradient.defined()) {
        now->sparse.push_back(std::move(gradient));
        if (added) {
          now->version = leaf.version;
        } else {
          now->version.Add(leaf.version);
        }
        return absl::OkStatus();
      }
      before = *now;
    }
    PSD_ASSIGN_OR_RETURN(Tensor dense, gradient.ToDense());
    PSD_ASSIGN_OR_RETURN(dense, ops::Add(before.gradient, dense));
    if (Replace(before, std::move(dense), leaf.version)) return absl::OkStatus();
  }
}

bool ContextState::Replace(const LeafGradient& before, Tensor sum, uint64_t version) {
  MutexLock lock(mutex_);
  LeafGradient& now = *OwnGradients().Find(before.key);
  if (!Unchanged(before, now)) return false;
  now.version.Add(version);
  now.gradient = std::move(sum);
  now.sparse.clear();
  return true;
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
  MutexLock lock(mutex_);
  if (const LeafGradient* found = gradients_->Find(key); found != nullptr) return *found;
  return absl::NotFoundError(absl::StrCat("autograd context ", id_.ToString(),
                                          " has no gradient for leaf ", key.ToString(),
                                          ": no loss depended on it"));
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
