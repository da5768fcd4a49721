#pragma once

// One distributed-autograd pass's memory on one worker: send and recv functions, gradients, and
// which workers know the context.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/dist_autograd/functions.h"
#include "core/dist_autograd/leaf_gradients.h"
#include "core/tensor/sparse_tensor.h"

namespace psd::dist_autograd {

// Thread-safe. Shared by the table, by calls that are being served and by running passes; a
// released context stays alive for those and is refused to everybody else.
class ContextState {
 public:
  ContextState(GlobalId id, IdSource& ids) : id_(id), ids_(ids) {}
  ContextState(const ContextState&) = delete;
  ContextState& operator=(const ContextState&) = delete;

  GlobalId id() const { return id_; }

  // A message to or from `peer` has carried this context.
  void AddKnownWorker(const std::string& peer) PSD_EXCLUDES(mutex_);
  // A request of ours will: what it leaves on `callee` lives as long as our session there.
  void AddCallee(const std::string& callee) PSD_EXCLUDES(mutex_);
  // Our session with `peer` has ended for `reason`, and with it that worker's part of this context.
  void LoseSession(const std::string& peer, const absl::Status& reason) PSD_EXCLUDES(mutex_);
  // Not OK: the reason of the first session lost that had a part.
  absl::Status usable() const PSD_EXCLUDES(mutex_);
  std::vector<std::string> KnownWorkers() const PSD_EXCLUDES(mutex_);
  // Workers that a pass has reached through others, as those have said. Within a bound.
  void AddReached(const std::vector<std::string>& workers) PSD_EXCLUDES(mutex_);
  // The known workers, and those that were reached through them: all that may have gradients.
  std::vector<std::string> Reached() const PSD_EXCLUDES(mutex_);

  // A send function for those of `variables` that require grad, under a new message id.
  std::shared_ptr<SendFunction> AddSend(const std::vector<Variable>& variables)
      PSD_EXCLUDES(mutex_);
  // The same for leaves of this worker, which need no graph.
  std::shared_ptr<SendFunction> AddSend(std::vector<LeafInfo> leaves) PSD_EXCLUDES(mutex_);
  // Errors: NOT_FOUND naming context and message.
  absl::StatusOr<std::shared_ptr<SendFunction>> FindSend(GlobalId message) const
      PSD_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<SendFunction>> Sends() const PSD_EXCLUDES(mutex_);

  // A message with tensors that require grad has arrived; perhaps from this worker itself.
  void CountRecv(bool from_self) PSD_EXCLUDES(mutex_);
  size_t NumRecvs() const PSD_EXCLUDES(mutex_);
  bool HasRecvsFromSelf() const PSD_EXCLUDES(mutex_);

  // Adds to what was collected for the leaves before (never in place where shared): all, or if
  // there is an error nothing. For the version see ReadVersion. f16 and bf16 are added in f32.
  // Sparse and sparse stays sparse; dense and sparse, in either order, is dense. Errors:
  // INVALID_ARGUMENT for another shape or dtype than before; RESOURCE_EXHAUSTED.
  absl::Status AccumulateAll(std::vector<std::pair<LeafInfo, Tensor>> dense,
                             std::vector<std::pair<LeafInfo, SparseTensor>> sparse)
      PSD_EXCLUDES(mutex_);
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) PSD_EXCLUDES(mutex_);
  absl::Status AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) PSD_EXCLUDES(mutex_);
  // Of this worker, as they are now: what is collected later does not change them.
  std::shared_ptr<const LeafGradients> Gradients() PSD_EXCLUDES(mutex_);
  // Errors: NOT_FOUND naming context and leaf.
  absl::StatusOr<LeafGradient> Gradient(GlobalId key) const PSD_EXCLUDES(mutex_);

  // Whether freeing it takes a while.
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
  // The gradients, to be changed: a copy if somebody may look at them.
  LeafGradients& OwnGradients() PSD_REQUIRES(mutex_);
  std::shared_ptr<SendFunction> Keep(std::shared_ptr<SendFunction> send) PSD_EXCLUDES(mutex_);
  // Takes the gradients over if they are the first, in the order of their keys, and no leaf is
  // named twice; else false.
  bool TakeFirst(std::vector<std::pair<LeafInfo, Tensor>>& dense,
                 std::vector<std::pair<LeafInfo, SparseTensor>>& sparse) PSD_EXCLUDES(mutex_);
  // What was collected for the leaves of `sums`, which name no leaf twice.
  std::vector<LeafGradient> Collected(const std::vector<LeafGradient>& sums) const
      PSD_EXCLUDES(mutex_);
  // Adds are done outside of the lock: false if somebody else has added since `before` was read.
  bool Replace(const std::vector<LeafGradient>& before, std::vector<LeafGradient>& sums)
      PSD_EXCLUDES(mutex_);

  const GlobalId id_;
  IdSource& ids_;
  mutable Mutex mutex_;  // leaf
  std::vector<std::string> known_workers_ PSD_GUARDED_BY(mutex_);
  std::vector<std::string> callees_ PSD_GUARDED_BY(mutex_);  // some of the known ones
  std::vector<std::string> reached_ PSD_GUARDED_BY(mutex_);  // none of the known ones when it came
  absl::Status usable_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<GlobalId, std::shared_ptr<SendFunction>> sends_ PSD_GUARDED_BY(mutex_);
  size_t recvs_ PSD_GUARDED_BY(mutex_) = 0;
  bool recvs_from_self_ PSD_GUARDED_BY(mutex_) = false;
  // Shared with those who asked for them since `gradients_shared_`; the last frees them.
  std::shared_ptr<LeafGradients> gradients_ PSD_GUARDED_BY(mutex_) =
      std::make_shared<LeafGradients>();
  bool gradients_shared_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::dist_autograd
