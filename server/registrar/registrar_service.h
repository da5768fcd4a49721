#pragma once

// The registrar's methods: messages to the ledger and back. "registrar.join", "registrar.world",
// "registrar.barrier"; what they carry is in proto/psd/v1/registrar.proto.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/rpc/rpc_agent.h"
#include "server/registrar/registrar_ledger.h"

namespace psd::server {

// Thread-safe. A barrier holds no thread: its calls are parked until they are answered.
class RegistrarService {
 public:
  // Registers the methods and hears of ended sessions. `agent` has not started, is shut down before
  // this object goes, and `logger` outlives both.
  RegistrarService(rpc::RpcAgent& agent, Logger& logger);
  RegistrarService(const RegistrarService&) = delete;
  RegistrarService& operator=(const RegistrarService&) = delete;

  std::vector<Member> World() const PSD_EXCLUDES(mutex_);

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;
  void ServeJoin(const CallPtr& call) PSD_EXCLUDES(mutex_);
  void ServeWorld(const CallPtr& call) PSD_EXCLUDES(mutex_);
  void ServeBarrier(const CallPtr& call) PSD_EXCLUDES(mutex_);
  void SessionEnded(const rpc::PeerInfo& peer) PSD_EXCLUDES(mutex_);
  void GiveUp(RegistrarLedger::Ticket ticket) PSD_EXCLUDES(mutex_);
  // Answers the parked calls.
  void Deliver(const RegistrarLedger::Answers& answers) PSD_EXCLUDES(mutex_);

  Logger& logger_;
  mutable Mutex mutex_;  // leaf
  RegistrarLedger ledger_ PSD_GUARDED_BY(mutex_);
  RegistrarLedger::Ticket next_ticket_ PSD_GUARDED_BY(mutex_) = 1;
  std::map<RegistrarLedger::Ticket, CallPtr> parked_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::server
