#pragma once

// The state of one distributed-autograd context on one worker: send functions, collected gradients,
// and the workers that know the context.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/base/device.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/stepwise_charge.h"
#include "core/dist_autograd/functions.h"
#include "core/dist_autograd/leaf_gradients.h"
#include "core/rref/session_key.h"
#include "core/tensor/sparse_tensor.h"

namespace psd::dist_autograd {

// Thread-safe. Shared by the table, by calls that are being served and by running passes. A
// released context stays alive for those calls and passes; nobody else can get it.
class ContextState {
 public:
  // The charge for a context with its first messages and gradients.
  static constexpr size_t kContextBytes = size_t{2} << 10;

  // The bytes that a context may take from the memory reserved for small calls, if a session pays
  // for it.
  static constexpr size_t kModestBytes = size_t{16} << 10;

  // Messages and entries of gradients beyond kContextBytes are charged to `memory`; if it is null,
  // they are not charged. The first `modest_bytes` of them may use the memory reserved for small
  // calls.
  ContextState(GlobalId id, IdSource& ids, std::shared_ptr<MemoryBudget> memory = nullptr,
               size_t modest_bytes = 0)
      : id_(id), ids_(ids), memory_(std::move(memory)), modest_bytes_(modest_bytes) {}
  ContextState(const ContextState&) = delete;
  ContextState& operator=(const ContextState&) = delete;

  GlobalId id() const { return id_; }

  // Records that a message to or from `peer` has carried this context.
  void AddKnownWorker(const std::string& peer) PSD_EXCLUDES(mutex_);
  // Records that a request from here will carry this context to `callee`. Returns whether it is the
  // first one. The part of the context on `callee` lives as long as our session there.
  bool AddCallee(const std::string& callee) PSD_EXCLUDES(mutex_);
  // Records that the part on `callee` is in our session `session` there. Only the first session
  // counts: that of the first request, or if there was none yet, that of the first answer.
  void SetSession(const std::string& callee, rref::SessionKey session) PSD_EXCLUDES(mutex_);
  // Returns that session; epoch 0 if it is not known.
  rref::SessionKey SessionOn(const std::string& callee) const PSD_EXCLUDES(mutex_);
  // To be called when our session `session` on `peer` has ended for `reason`. If `peer` is a
  // callee, its part of this context is lost, and the context becomes unusable. Nothing changes if
  // its part is in another session, because this is then a late notice about an earlier one.
  void LoseSession(const std::string& peer, rref::SessionKey session, const absl::Status& reason)
      PSD_EXCLUDES(mutex_);
  // OK, or the reason for which the first part of this context was lost.
  absl::Status usable() const PSD_EXCLUDES(mutex_);
  std::vector<std::string> KnownWorkers() const PSD_EXCLUDES(mutex_);
  // Adds workers that a pass has reached through other workers, which have reported them. Their
  // number is bounded.
  void AddReached(const std::vector<std::string>& workers) PSD_EXCLUDES(mutex_);
  // The known workers, and those that were reached through them. No other worker can have
  // gradients.
  std::vector<std::string> Reached() const PSD_EXCLUDES(mutex_);

  // Adds a send function for those of `variables` that require grad, under a new message id.
  // Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<SendFunction>> AddSend(const std::vector<Variable>& variables)
      PSD_EXCLUDES(mutex_);
  // As above, for leaves of this worker, which have no graph. `device` is that of SendFunction.
  absl::StatusOr<std::shared_ptr<SendFunction>> AddSend(std::vector<LeafInfo> leaves,
                                                        Device* device = nullptr)
      PSD_EXCLUDES(mutex_);
  // Errors: NOT_FOUND naming context and message.
  absl::StatusOr<std::shared_ptr<SendFunction>> FindSend(GlobalId message) const
      PSD_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<SendFunction>> Sends() const PSD_EXCLUDES(mutex_);

  // Records that a message with tensors that require grad has arrived. `from_self` means that this
  // worker sent it to itself.
  void CountRecv(bool from_self) PSD_EXCLUDES(mutex_);
  size_t NumRecvs() const PSD_EXCLUDES(mutex_);
  bool HasRecvsFromSelf() const PSD_EXCLUDES(mutex_);

  // Adds gradients to those collected for the same leaves. A sum is never changed in place if
  // somebody else holds it. On an error nothing is added. See ReadVersion for how versions are
  // combined. The sum of f16 or bf16 gradients is kept in f32, so that many small ones are not lost
  // one by one. The sum of sparse gradients is sparse; the sum of a dense and a sparse one is
  // dense. A sum is on the device of its first gradient, or on the host if the device has no room
  // for it. Errors: INVALID_ARGUMENT for another shape or dtype than before; RESOURCE_EXHAUSTED.
  absl::Status AccumulateAll(std::vector<std::pair<LeafInfo, Tensor>> dense,
                             std::vector<std::pair<LeafInfo, SparseTensor>> sparse)
      PSD_EXCLUDES(mutex_);
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) PSD_EXCLUDES(mutex_);
  absl::Status AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) PSD_EXCLUDES(mutex_);
  // Returns the gradients that this worker has collected so far. Sums of f16 and bf16 gradients are
  // not rounded yet. Later gradients do not change the result.
  std::shared_ptr<const LeafGradients> Gradients() PSD_EXCLUDES(mutex_);
  // Returns the sum for a leaf, in the dtype of its gradients. Errors: NOT_FOUND naming context and
  // leaf; RESOURCE_EXHAUSTED when there is no memory to round the sum.
  absl::StatusOr<LeafGradient> Gradient(GlobalId key) const PSD_EXCLUDES(mutex_);

  // Returns what was collected for the leaves whose keys `leaves` have, in their order; an element
  // stays as it is if nothing was collected for its leaf. Sums are not rounded.
  // Requires: no two keys are equal.
  std::vector<LeafGradient> Collected(const std::vector<LeafGradient>& leaves) const
      PSD_EXCLUDES(mutex_);
  // Puts `after`, which was computed from `before` outside of the lock, in its place. Returns false
  // and changes nothing if another thread has added gradients for these leaves since Collected
  // returned `before`.
  // Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<bool> Replace(const std::vector<LeafGradient>& before,
                               std::vector<LeafGradient>& after) PSD_EXCLUDES(mutex_);

  // Hands the gradients of these leaves to a step, which nobody may repeat with this context.
  // Returns false and changes nothing if one of them was handed over before.
  bool HandOver(const std::vector<LeafGradient>& leaves) PSD_EXCLUDES(mutex_);
  // Takes back gradients that the step to which they were handed over will not use.
  void TakeBack(const std::vector<LeafGradient>& leaves) PSD_EXCLUDES(mutex_);

  // Whether a gradient on a device has been collected. Then adding further ones, or reading the
  // sums, may wait for the device. A thread that must not wait asks first; in the rare case that
  // the first such gradient comes between, it waits once.
  bool HasDeviceGradients() const PSD_EXCLUDES(mutex_);
  // Whether destroying it takes so long that another thread should do it.
  bool IsLarge() const PSD_EXCLUDES(mutex_);

  struct Stats {
    size_t sends = 0;
    size_t recvs = 0;
    size_t gradients = 0;
    size_t known_workers = 0;
    size_t gradient_bytes = 0;
  };
  Stats stats() const PSD_EXCLUDES(mutex_);

 private:
  // Returns the gradients for a change. Copies them first if a reader may hold them.
  LeafGradients& OwnGradients() PSD_REQUIRES(mutex_);
  absl::StatusOr<std::shared_ptr<SendFunction>> Keep(std::shared_ptr<SendFunction> send)
      PSD_EXCLUDES(mutex_);
  // Charges `bytes` more for bookkeeping. Errors: RESOURCE_EXHAUSTED.
  absl::Status Charge(size_t bytes) PSD_REQUIRES(mutex_);
  // Takes the gradients over if they are the first, come in the order of their keys, and name no
  // leaf twice; otherwise returns false. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<bool> TakeFirst(std::vector<std::pair<LeafInfo, Tensor>>& dense,
                                 std::vector<std::pair<LeafInfo, SparseTensor>>& sparse)
      PSD_EXCLUDES(mutex_);
  // Returns the sum for a leaf, not rounded. Errors: NOT_FOUND.
  absl::StatusOr<LeafGradient> Sum(GlobalId key) const PSD_EXCLUDES(mutex_);

  const GlobalId id_;
  IdSource& ids_;
  const std::shared_ptr<MemoryBudget> memory_;  // shared with the worker
  const size_t modest_bytes_;
  mutable Mutex mutex_;  // leaf
  StepwiseCharge charge_ PSD_GUARDED_BY(mutex_){size_t{4} << 10, kContextBytes / 2};
  std::vector<std::string> known_workers_ PSD_GUARDED_BY(mutex_);
  // The callees among the known workers, each with our session there that has its part; epoch 0:
  // not known yet.
  std::map<std::string, rref::SessionKey> callees_ PSD_GUARDED_BY(mutex_);
  // Workers that were not known when they were added.
  std::vector<std::string> reached_ PSD_GUARDED_BY(mutex_);
  absl::Status usable_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<GlobalId, std::shared_ptr<SendFunction>> sends_ PSD_GUARDED_BY(mutex_);
  size_t recvs_ PSD_GUARDED_BY(mutex_) = 0;
  bool recvs_from_self_ PSD_GUARDED_BY(mutex_) = false;
  // Shared with callers of Gradients() while gradients_shared_ is true.
  std::shared_ptr<LeafGradients> gradients_ PSD_GUARDED_BY(mutex_) =
      std::make_shared<LeafGradients>();
  bool gradients_shared_ PSD_GUARDED_BY(mutex_) = false;
  bool has_device_gradients_ PSD_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<GlobalId> handed_over_ PSD_GUARDED_BY(mutex_);  // the keys of leaves
};

using ContextPtr = std::shared_ptr<ContextState>;

}  // namespace psd::dist_autograd
