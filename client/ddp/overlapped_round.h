#pragma once

// Averages gradients while the backward that computes them goes on. Internal to client/ddp/.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "client/ddp/buffer_groups.h"
#include "client/ddp/buffered_all_reduce.h"
#include "client/ddp/gradient_paths.h"
#include "core/base/mutex.h"
#include "core/tensor/tensor.h"

namespace psd {

// Takes the gradients of one backward as they become complete. Starts the all-reduce of a buffer
// when its gradients and those of all buffers before it are complete, so all ranks make their calls
// in the same order, whatever the order of their backwards. Never waits for another rank. Shared by
// its creator and by hooks of the backward's leaves, which may be called after Close. Thread-safe.
class OverlappedRound : public std::enable_shared_from_this<OverlappedRound> {
 public:
  // `groups` are those of the round. `before` has the gradients that the context has collected
  // before the backward, by parameter; an undefined one means none.
  OverlappedRound(BufferedAllReduce::Round round, std::vector<BufferGroup> groups,
                  std::vector<Tensor> before);

  // Attaches hooks to the leaves of `paths`, which has one element for each parameter. Starts the
  // buffers whose parameters get no gradients of this backward. To be called once, before the
  // backward. Errors: those of Round::StartNext.
  absl::Status Watch(const std::vector<GradientPath>& paths);

  // The state of the round when it was closed.
  struct Closed {
    BufferedAllReduce::Round round;
    std::vector<Tensor> gradients;  // by parameter, of those that were complete
    // The first error of a call, with which the backward was stopped.
    absl::Status failure;
  };
  // Takes no further gradients. Waits for a hook that is running. To be called once.
  Closed Close() PSD_EXCLUDES(mutex_);

 private:
  // The hook of a parameter's leaf.
  absl::Status OnAccumulated(size_t parameter, const Tensor& gradient) PSD_EXCLUDES(mutex_);
  absl::Status Take(size_t parameter, const Tensor& gradient);
  absl::Status StartComplete();

  // Waits until nobody uses the round, and takes it. Returns false if the round is closed;
  // otherwise Exit must be called.
  bool Enter() PSD_EXCLUDES(mutex_);
  void Exit() PSD_EXCLUDES(mutex_);

  const std::vector<BufferGroup> groups_;
  std::vector<std::optional<size_t>> group_of_;  // by parameter; none if it travels in no buffer

  Mutex mutex_;  // leaf
  CondVar left_;
  bool in_use_ PSD_GUARDED_BY(mutex_) = false;
  bool closed_ PSD_GUARDED_BY(mutex_) = false;

  // The following belong to the thread that has entered.
  BufferedAllReduce::Round round_;
  std::vector<Tensor> before_;
  std::vector<Tensor> gradients_;   // complete ones, by parameter
  std::vector<size_t> incomplete_;  // by buffer: the number of its parameters that are incomplete
  absl::Status failure_;
};

}  // namespace psd
