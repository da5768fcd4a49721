#pragma once

// The registrar's methods, which connect messages with the ledger: "registrar.join",
// "registrar.world" and "registrar.barrier" (also for all-gather). The messages are in
// proto/psd/v1/registrar.proto.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"
#include "server/registrar/registrar_ledger.h"

namespace psd::server {

// Thread-safe. A barrier holds no thread: its calls are parked until they are answered. When the
// agent begins to drain, all parked calls are answered, because the missing calls of their barriers
// no longer come.
class RegistrarService {
 public:
  // Registers the methods, and callbacks for ended sessions and for draining. Requires: `agent` has
  // not started; `agent` and `timers` are shut down before this object is destroyed; `logger`
  // outlives all of them. `owners` names the workers that may join as owners, which are listed as
  // absent until they do. If it is empty, any worker may join as an owner. An owner that joined and
  // then was lost, that is, whose session ended without a goodbye, is listed as absent as well.
  RegistrarService(rpc::RpcAgent& agent, TimerQueue& timers, Logger& logger,
                   std::set<std::string> owners = {});
  RegistrarService(const RegistrarService&) = delete;
  RegistrarService& operator=(const RegistrarService&) = delete;

  std::vector<Member> World() const PSD_EXCLUDES(mutex_);

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;
  void ServeJoin(const CallPtr& call) PSD_EXCLUDES(mutex_);
  void ServeWorld(const CallPtr& call) PSD_EXCLUDES(mutex_);
  void ServeBarrier(const CallPtr& call) PSD_EXCLUDES(mutex_);
  void SessionEnded(const rpc::PeerInfo& peer, uint64_t epoch, Departure departure)
      PSD_EXCLUDES(mutex_);
  void Drain() PSD_EXCLUDES(mutex_);
  // A call that waits in a barrier.
  struct Parked {
    CallPtr call;
    bool gather = false;
    std::vector<Buffer> given;  // in an all-gather
    size_t bytes = 0;           // of these
    TimerQueue::Id timer = 0;
  };
  void Arm(RegistrarLedger::Ticket ticket, absl::Duration timeout) PSD_EXCLUDES(mutex_);
  void Expire(RegistrarLedger::Ticket ticket, absl::Duration timeout) PSD_EXCLUDES(mutex_);
  void GiveUp(RegistrarLedger::Ticket ticket) PSD_EXCLUDES(mutex_);
  // Returns a value without a call if the ticket no longer waits.
  Parked TakeParked(RegistrarLedger::Ticket ticket) PSD_EXCLUDES(mutex_);
  // Sends `answers` to the parked calls.
  void Deliver(const RegistrarLedger::Answers& answers) PSD_EXCLUDES(mutex_);
  absl::Status CheckJoin(const rpc::PeerInfo& caller, Role role, const std::string& address) const;
  // Returns the answer to the calls of a completed all-gather.
  static rpc::Payload Gathered(std::vector<Parked>& met);

  const std::string self_;  // this worker's name
  rpc::Access& access_;
  TimerQueue& timers_;
  Logger& logger_;
  const std::set<std::string> owners_;  // empty: anybody
  mutable Mutex mutex_;                 // leaf
  RegistrarLedger ledger_ PSD_GUARDED_BY(mutex_);
  RegistrarLedger::Ticket next_ticket_ PSD_GUARDED_BY(mutex_) = 1;
  std::map<RegistrarLedger::Ticket, Parked> parked_ PSD_GUARDED_BY(mutex_);
  size_t parked_bytes_ PSD_GUARDED_BY(mutex_) = 0;
  bool draining_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::server
