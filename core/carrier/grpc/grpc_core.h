#pragma once

// The parts that all links of one gRPC carrier share: pollers, timers and the table of links.

#include <grpcpp/channel.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/executor.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/carrier/assembler.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/channel_settings.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/grpc/grpc_stream.h"
#include "core/carrier/grpc/poller.h"

namespace psd::carrier {

class GrpcLink;

// Thread-safe. Shared by the carrier, its links and its streams.
class GrpcCore : public std::enable_shared_from_this<GrpcCore> {
 public:
  explicit GrpcCore(const GrpcCarrierOptions& options);

  const GrpcCarrierOptions& options() const { return options_; }
  // The memory for messages that may wait for room, and for small ones, which may not.
  const ReceiveMemory& bulk_memory() const { return bulk_memory_; }
  const ReceiveMemory& small_memory() const { return small_memory_; }
  const WaitingRules& waiting() const { return waiting_; }

  // A share of the bytes that streams keep while they wait for room. The destructor gives them
  // back.
  class Unread {
   public:
    explicit Unread(std::shared_ptr<GrpcCore> core, size_t bytes)
        : core_(std::move(core)), bytes_(bytes) {}
    ~Unread() {
      if (core_ != nullptr) core_->unread_bytes_.fetch_sub(bytes_);
    }
    Unread(Unread&& other) noexcept : core_(std::move(other.core_)), bytes_(other.bytes_) {}
    Unread& operator=(Unread&&) = delete;

   private:
    std::shared_ptr<GrpcCore> core_;
    const size_t bytes_;
  };
  // Counts `bytes` bytes that streams keep while they wait for room. Returns nothing if they may
  // not wait, because gRPC already keeps too many such bytes.
  std::optional<Unread> KeepUnread(size_t bytes);

  TimerQueue& timers() { return timers_; }
  // RESOURCE_EXHAUSTED if the system refused a thread.
  const absl::Status& started() const { return timers_.started(); }
  // Runs `task` on one of the carrier's threads, after `delay`. The task is dropped if no stream
  // may be made any more. Requires: a stream has been made.
  void RunAfter(absl::Duration delay, Task task) PSD_EXCLUDES(mutex_);
  // Makes sure that there are threads and a queue for streams that are dialled.
  // Errors: RESOURCE_EXHAUSTED if the system refuses a thread; UNAVAILABLE once the carrier is
  // quiet.
  absl::Status ReadyToDial() PSD_EXCLUDES(mutex_);
  // Returns the queue for streams that are dialled: the first one that was made. Requires:
  // ReadyToDial was OK.
  grpc::CompletionQueue* dial_queue() PSD_EXCLUDES(mutex_);
  // Keeps `poller`, which has its queue, until Stop.
  void Keep(std::unique_ptr<Poller> poller) PSD_EXCLUDES(mutex_);

  // Returns a channel with a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, Window window) const;

  // Counts a stream or another call until the returned function is called. Returns null once the
  // carrier is quiet; then no stream may be made any more.
  StreamGone CountStream() PSD_EXCLUDES(mutex_);

  // The most links that one connection may have. A peer of psd has one.
  static constexpr size_t kLinksOfConnection = 16;

  // Keeps `link` until Forget. `connection` is the peer's end of the connection on which the link
  // was opened; empty if this worker dialled. Errors: UNAVAILABLE after BeginShutdown;
  // RESOURCE_EXHAUSTED if the connection has too many links, or there is no memory for another one.
  absl::Status Register(const LinkToken& token, std::shared_ptr<GrpcLink> link,
                        const std::string& connection) PSD_EXCLUDES(mutex_);
  // To be called when the link has called its handler for the last time.
  void Forget(const LinkToken& token) PSD_EXCLUDES(mutex_);
  // Returns null if there is no such link.
  std::shared_ptr<GrpcLink> Find(const LinkToken& token) const PSD_EXCLUDES(mutex_);

  // Returns all links. No link can be registered any more.
  std::vector<std::shared_ptr<GrpcLink>> BeginShutdown() PSD_EXCLUDES(mutex_);
  // Waits until the last link is forgotten and the last stream is gone.
  void AwaitQuiet() PSD_EXCLUDES(mutex_);
  // Joins the threads. Requires: quiet.
  void Stop();

 private:
  const GrpcCarrierOptions options_;
  const ReceiveMemory bulk_memory_;
  const ReceiveMemory small_memory_;
  const WaitingRules waiting_;
  const size_t most_unread_bytes_;
  std::atomic<size_t> unread_bytes_{0};
  TimerQueue timers_;

  mutable Mutex mutex_;  // before: Poller
  // There is one if the carrier listened before it dialled, otherwise up to two.
  std::vector<std::unique_ptr<Poller>> pollers_ PSD_GUARDED_BY(mutex_);
  CondVar quiet_;
  bool shutting_down_ PSD_GUARDED_BY(mutex_) = false;
  bool is_quiet_ PSD_GUARDED_BY(mutex_) = false;
  int streams_ PSD_GUARDED_BY(mutex_) = 0;
  struct Registered {
    std::shared_ptr<GrpcLink> link;  // shared with its user
    std::string connection;
    MemoryCharge charge;
  };
  absl::flat_hash_map<LinkToken, Registered> links_ PSD_GUARDED_BY(mutex_);
  // The number of links that were opened on each connection.
  absl::flat_hash_map<std::string, size_t> brought_ PSD_GUARDED_BY(mutex_);
};

// Returns a random token from the system's entropy.
LinkToken NewLinkToken();

}  // namespace psd::carrier
