#pragma once

// The state that the parts of one CUDA device share: whether it is lost, and its events.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

struct CUevent_st;   // *cudaEvent_t
struct CUstream_st;  // *cudaStream_t

namespace psd::cuda {

class Mark;

// Thread-safe. Outlives its device if events do, which keep it alive.
class CudaContext : public std::enable_shared_from_this<CudaContext> {
 public:
  // `index` is CUDA's number of the device, and `name` ours.
  CudaContext(int index, std::string name) : index_(index), name_(std::move(name)) {}
  // Destroys the unused events.
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int index() const { return index_; }
  const std::string& name() const { return name_; }

  // Makes the device the current one of this thread, which all calls of CUDA that concern it need.
  // It stays so: to go back to another device would initialise that one, with all the memory that
  // this takes. Errors: UNAVAILABLE if the device is lost.
  absl::Status Enter();
  // Returns the status of a call of CUDA on this thread; see StatusOf. If the device is lost, later
  // calls of Enter and health() say so too. Afterwards the thread has no error that a later call
  // could mistake for its own (cudaGetLastError).
  absl::Status Check(int error, absl::string_view operation);
  // As Check, for a call about which only `stream`, one of this device, can tell whether it lost
  // the device; null is CUDA's own default stream. OK if it did not. Requires: the device is the
  // current one of this thread.
  absl::Status Probe(CUstream_st* stream, absl::string_view operation);

  // The bytes that are free on the GPU, for errors. 0 if CUDA cannot tell. Requires: the device is
  // the current one of this thread.
  size_t FreeBytes();

  // The device is lost from now on. Returns health(), which names the first reason.
  absl::Status Lose(absl::string_view reason);
  // OK, or UNAVAILABLE naming the device and the reason.
  absl::Status health() const;
  // The reason why the device was lost. Empty if it was not.
  std::string loss() const;

  // Returns a mark behind all work that `stream`, one of this device, has now.
  absl::StatusOr<std::shared_ptr<Mark>> MarkIn(CUstream_st* stream);

 private:
  friend class Mark;
  absl::StatusOr<CUevent_st*> TakeEvent();
  void GiveEvent(CUevent_st* event);

  const int index_;
  const std::string name_;
  mutable Mutex mutex_;                                     // leaf
  std::string loss_ PSD_GUARDED_BY(mutex_);                 // the first reason
  std::vector<CUevent_st*> unused_ PSD_GUARDED_BY(mutex_);  // events without a mark
};

// A point in the work of a stream, held by an event of CUDA. Thread-safe.
class Mark {
 public:
  Mark(std::shared_ptr<CudaContext> context, CUevent_st* event)
      : context_(std::move(context)), event_(event) {}
  ~Mark() { context_->GiveEvent(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  // Whether the work before the mark has ended, with or without success.
  bool passed();
  // Waits until it has. Errors: UNAVAILABLE naming the device if it was lost. That is also said of
  // work that was done before, if nobody has asked between its end and the loss: CUDA cannot tell.
  absl::Status Wait();

  CUevent_st* event() const { return event_; }
  CudaContext& context() const { return *context_; }

 private:
  enum class State : uint8_t { kPending, kDone, kFailed };

  // Returns whether `error`, of a question about the event, says that the mark has passed.
  bool Note(int error);

  const std::shared_ptr<CudaContext> context_;  // shared by the device's parts and events
  CUevent_st* const event_;
  std::atomic<State> state_{State::kPending};
};

}  // namespace psd::cuda
