#include "server/registrar/registrar_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/worker/message_io.h"
#include "proto/psd/v1/registrar.pb.h"

namespace psd::server {
namespace {

using worker::ParseMessage;
using worker::PlainPayload;

constexpr size_t kMaxAddressBytes = 1024;
constexpr size_t kMaxBarrierNameBytes = 512;

absl::StatusOr<Role> ToRole(v1::WorkerRole role) {
  switch (role) {
    case v1::WORKER_ROLE_OWNER:
      return Role::kOwner;
    case v1::WORKER_ROLE_TRAINER:
      return Role::kTrainer;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "registrar.join: role ", static_cast<int>(role), " is neither owner nor trainer"));
  }
}

}  // namespace

RegistrarService::RegistrarService(rpc::RpcAgent& agent, Logger& logger) : logger_(logger) {
  using rpc::MethodKind;
  using rpc::RunsOn;
  agent.RegisterMethod({"registrar.join", MethodKind::kMutation, RunsOn::kCarrierThread,
                        [this](CallPtr call) { ServeJoin(call); }});
  agent.RegisterMethod({"registrar.world", MethodKind::kRead, RunsOn::kCarrierThread,
                        [this](CallPtr call) { ServeWorld(call); }});
  agent.RegisterMethod({"registrar.barrier", MethodKind::kMutation, RunsOn::kCarrierThread,
                        [this](CallPtr call) { ServeBarrier(call); }});
  agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t) { SessionEnded(peer); });
}

std::vector<Member> RegistrarService::World() const {
  MutexLock lock(mutex_);
  return ledger_.World();
}

void RegistrarService::ServeJoin(const CallPtr& call) {
  auto request = ParseMessage<v1::RegistrarJoinRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto role = ToRole(request->role());
  if (!role.ok()) return call->Reply(role.status());
  if (request->address().size() > kMaxAddressBytes) {
    return call->Reply(absl::InvalidArgumentError(
        absl::StrCat("registrar.join: an address of ", request->address().size(),
                     " bytes; at most ", kMaxAddressBytes)));
  }
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("registrar.join: cancelled"));
  absl::StatusOr<RegistrarLedger::Joined> joined;
  {
    MutexLock lock(mutex_);
    joined = ledger_.Join(call->caller().name, call->caller().incarnation, *role,
                          request->group_size(), request->address());
  }
  if (!joined.ok()) return call->Reply(joined.status());
  Deliver(joined->answers);
  if (joined->new_member) {
    logger_.Log(LogLevel::kInfo, "worker_joined", absl::StrCat(call->caller().name, " joined"),
                {{"worker", call->caller().name},
                 {"incarnation", IncarnationToString(call->caller().incarnation)},
                 {"rank", joined->rank},
                 {"world_size", joined->world_size}});
  }
  v1::RegistrarJoinReply reply;
  reply.set_rank(joined->rank);
  reply.set_world_size(joined->world_size);
  call->Reply(PlainPayload(reply));
}

void RegistrarService::ServeWorld(const CallPtr& call) {
  v1::RegistrarWorldReply reply;
  std::vector<Member> world;
  {
    MutexLock lock(mutex_);
    world = ledger_.World();
    reply.set_group_size(ledger_.group_size());
  }
  for (const Member& member : world) {
    reply.add_names(member.name);
    reply.add_incarnations(member.incarnation);
    reply.add_ranks(member.rank);
    reply.add_roles(member.role == Role::kOwner ? v1::WORKER_ROLE_OWNER : v1::WORKER_ROLE_TRAINER);
    reply.add_addresses(member.address);
  }
  call->Reply(PlainPayload(reply));
}

void RegistrarService::ServeBarrier(const CallPtr& call) {
  auto request = ParseMessage<v1::RegistrarBarrierRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  const size_t members = static_cast<size_t>(request->members_size());
  if (request->name().size() > kMaxBarrierNameBytes || members > RegistrarLedger::kMaxMembers) {
    return call->Reply(absl::InvalidArgumentError(absl::StrCat(
        "registrar.barrier: a name of ", request->name().size(), " bytes and ", members,
        " members; at most ", kMaxBarrierNameBytes, " and ", RegistrarLedger::kMaxMembers)));
  }
  RegistrarLedger::Ticket ticket = 0;
  RegistrarLedger::Answers answers;
  {
    MutexLock lock(mutex_);
    ticket = next_ticket_++;
    parked_[ticket] = call;
    answers = ledger_.EnterBarrier(ticket, call->caller().name, call->caller().incarnation,
                                   request->name(),
                                   {request->members().begin(), request->members().end()});
  }
  Deliver(answers);
  call->OnCancel([this, ticket] { GiveUp(ticket); });
}

void RegistrarService::GiveUp(RegistrarLedger::Ticket ticket) {
  CallPtr call;
  {
    MutexLock lock(mutex_);
    auto it = parked_.find(ticket);
    if (it == parked_.end()) return;
    call = std::move(it->second);
    parked_.erase(it);
    ledger_.Withdraw(ticket);
  }
  call->Reply(absl::CancelledError("barrier: given up before all had arrived"));
}

void RegistrarService::Deliver(const RegistrarLedger::Answers& answers) {
  for (const RegistrarLedger::Answer& answer : answers) {
    CallPtr call;
    {
      MutexLock lock(mutex_);
      auto it = parked_.find(answer.ticket);
      if (it == parked_.end()) continue;
      call = std::move(it->second);
      parked_.erase(it);
    }
    if (!answer.status.ok()) {
      call->Reply(answer.status);
    } else if (call->BeginApply()) {
      call->Reply(PlainPayload(v1::RegistrarBarrierReply()));
    } else {
      call->Reply(absl::CancelledError("barrier: given up as the last member arrived"));
    }
  }
}

void RegistrarService::SessionEnded(const rpc::PeerInfo& peer) {
  RegistrarLedger::Answers answers;
  bool left = false;
  {
    MutexLock lock(mutex_);
    const size_t before = ledger_.size();
    answers = ledger_.Leave(peer.name, peer.incarnation);
    left = ledger_.size() < before;
  }
  Deliver(answers);
  if (!left) return;
  logger_.Log(LogLevel::kInfo, "worker_left", absl::StrCat(peer.name, " left"),
              {{"worker", peer.name}, {"incarnation", IncarnationToString(peer.incarnation)}});
}

}  // namespace psd::server
