#include "server/registrar/registrar_service.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/buffer.h"
#include "core/base/host_port.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/draining.h"
#include "core/rpc/message_io.h"
#include "proto/psd/v1/registrar.pb.h"

namespace psd::server {
namespace {

using rpc::ParseMessage;
using rpc::PlainPayload;

constexpr size_t kMaxBarrierNameBytes = 512;
constexpr size_t kMaxGatheredBytes = size_t{1} << 20;  // from one worker
constexpr size_t kMaxParkedBytes = size_t{256} << 20;  // of all that wait
constexpr char kJob[] = "the job";                     // as an object of rpc::Access
constexpr char kBarrierCall[] = "the barrier";
constexpr uint64_t kMostTimeoutMs = uint64_t{365} * 24 * 3600 * 1000;

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

// Checks the bounds on a barrier request. Returns the bytes of its values.
absl::StatusOr<size_t> CheckSizes(const v1::RegistrarBarrierRequest& request,
                                  const std::vector<Buffer>& buffers) {
  const size_t members = static_cast<size_t>(request.members_size());
  if (request.name().size() > kMaxBarrierNameBytes || members > RegistrarLedger::kMaxMembers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "registrar.barrier: a name of ", request.name().size(), " bytes and ", members,
        " members; at most ", kMaxBarrierNameBytes, " and ", RegistrarLedger::kMaxMembers));
  }
  size_t given = request.values().size();
  for (const Buffer& buffer : buffers) given += sizeof(buffer) + buffer.size();
  if (given <= kMaxGatheredBytes) return given;
  return absl::InvalidArgumentError(
      absl::StrCat("all-gather: ", given, " bytes from one worker; at most ", kMaxGatheredBytes,
                   ": all-gathers are for small values; let the others fetch large ones"));
}

// Returns the memory that a call takes while it waits, besides the buffers of its message. The
// ledger keeps each member in a node.
size_t KeptBytes(const v1::RegistrarBarrierRequest& request) {
  constexpr size_t kNodeBytes = 112;
  size_t bytes = request.values().size() + request.name().size();
  for (const std::string& member : request.members()) bytes += kNodeBytes + member.size();
  return bytes;
}

absl::Status TooManyBytes() {
  return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                        "all-gather: values of ", kMaxParkedBytes, " bytes wait here already")),
                    "try again later");
}

}  // namespace

RegistrarService::RegistrarService(rpc::RpcAgent& agent, TimerQueue& timers, Logger& logger,
                                   std::set<std::string> owners)
    : self_(agent.self().name),
      access_(agent.access()),
      timers_(timers),
      logger_(logger),
      owners_(std::move(owners)) {
  using rpc::MethodKind;
  using rpc::RunsOn;
  agent.RegisterMethod({"registrar.join", MethodKind::kMutation, RunsOn::kCarrierThread,
                        [this](CallPtr call) { ServeJoin(call); }});
  agent.RegisterMethod({"registrar.world", MethodKind::kRead, RunsOn::kCarrierThread,
                        [this](CallPtr call) { ServeWorld(call); }});
  agent.RegisterMethod({"registrar.barrier", MethodKind::kMutation, RunsOn::kCarrierThread,
                        [this](CallPtr call) { ServeBarrier(call); }});
  agent.OnGoodbye([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    SessionEnded(peer, epoch, Departure::kOrderly);
  });
  agent.OnSessionEnded([this](const rpc::PeerInfo& peer, uint64_t epoch) {
    SessionEnded(peer, epoch, Departure::kLost);
  });
  agent.OnDraining([this] { Drain(); });
}

std::vector<Member> RegistrarService::World() const {
  MutexLock lock(mutex_);
  return ledger_.World();
}

absl::Status RegistrarService::CheckJoin(const rpc::PeerInfo& caller, Role role,
                                         const std::string& address) const {
  if (address.empty() && role == Role::kOwner) {
    return WithRemedy(
        absl::InvalidArgumentError(
            absl::StrCat("registrar.join: ", caller.name, " joins as an owner and has no address")),
        "let it listen (`listen`), or join as a trainer");
  }
  if (!address.empty()) {
    const absl::StatusOr<HostPort> parsed = ParseHostPortToDial(address);
    absl::Status dialable = parsed.status();
    if (parsed.ok() && parsed->IsWildcard())
      dialable = WithRemedy(
          absl::InvalidArgumentError(absl::StrCat(address, " cannot be dialled by others")),
          "advertise a host name or address");
    PSD_RETURN_IF_ERROR(
        Annotate(dialable, absl::StrCat("registrar.join: the address of ", caller.name,
                                        " (its `advertise`, or what it listens on)")));
  }
  if (role != Role::kOwner || owners_.empty() || owners_.count(caller.name) > 0)
    return absl::OkStatus();
  return WithRemedy(
      absl::PermissionDeniedError(absl::StrCat("registrar.join: ", caller.name,
                                               " is not among the owners that this registrar's "
                                               "configuration names (",
                                               absl::StrJoin(owners_, ", "), ")")),
      "add it to `owners` there");
}

void RegistrarService::ServeJoin(const CallPtr& call) {
  auto request = ParseMessage<v1::RegistrarJoinRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto role = ToRole(request->role());
  if (!role.ok()) return call->Reply(role.status());
  absl::Status allowed = access_.Authorize(rpc::AskerOf(*call), rpc::Right::kJoin, kJob);
  if (allowed.ok()) allowed = CheckJoin(call->caller(), *role, request->address());
  if (!allowed.ok()) return call->Reply(allowed);
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("registrar.join: cancelled"));
  absl::StatusOr<RegistrarLedger::Joined> joined;
  {
    MutexLock lock(mutex_);
    joined = ledger_.Join(
        call->caller().name, call->caller().incarnation, call->session_epoch(), *role,
        request->group_size(), request->address(),
        request->has_wanted_rank() ? std::optional(request->wanted_rank()) : std::nullopt);
  }
  if (!joined.ok()) return call->Reply(joined.status());
  Deliver(joined->answers);
  if (joined->new_member && !call->BeginApply()) {
    // The session has ended meanwhile, perhaps before the join; so the join is undone here.
    SessionEnded(call->caller(), call->session_epoch(),
                 joined->was_lost ? Departure::kLost : Departure::kOrderly);
    return call->Reply(absl::CancelledError("registrar.join: given up while it was carried out"));
  }
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
  const absl::Status allowed = access_.Authorize(rpc::AskerOf(*call), rpc::Right::kInspect, kJob);
  if (!allowed.ok()) return call->Reply(allowed);
  v1::RegistrarWorldReply reply;
  std::vector<Member> world;
  std::set<std::string> absent = owners_;
  {
    MutexLock lock(mutex_);
    world = ledger_.World();
    reply.set_group_size(ledger_.group_size());
    absent.insert(ledger_.lost_owners().begin(), ledger_.lost_owners().end());
  }
  for (const Member& member : world) {
    reply.add_names(member.name);
    reply.add_incarnations(member.incarnation);
    reply.add_ranks(member.rank);
    reply.add_roles(member.role == Role::kOwner ? v1::WORKER_ROLE_OWNER : v1::WORKER_ROLE_TRAINER);
    reply.add_addresses(member.address);
    if (member.role == Role::kOwner) absent.erase(member.name);
  }
  for (const std::string& name : absent) reply.add_absent_owners(name);
  call->Reply(rpc::Payload{{}, {Buffer::FromString(reply.SerializeAsString())}});
}

void RegistrarService::ServeBarrier(const CallPtr& call) {
  auto request = ParseMessage<v1::RegistrarBarrierRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  const absl::Status allowed =
      access_.Authorize(rpc::AskerOf(*call), rpc::Right::kJoin, request->name());
  if (!allowed.ok()) return call->Reply(allowed);
  std::vector<Buffer> given = std::move(call->payload().buffers);
  call->ForgetMessage();  // a parked call needs nothing of its message
  absl::StatusOr<size_t> bytes = CheckSizes(*request, given);
  if (!bytes.ok()) return call->Reply(bytes.status());
  const absl::Status charged = call->Charge(KeptBytes(*request));
  if (!charged.ok()) return call->Reply(charged);
  given.insert(given.begin(), Buffer::FromString(std::move(*request->mutable_values())));
  const absl::Duration timeout = absl::Milliseconds(
      static_cast<int64_t>(std::min<uint64_t>(request->timeout_ms(), kMostTimeoutMs)));
  RegistrarLedger::Ticket ticket = 0;
  RegistrarLedger::Answers answers;
  // An all-gather and a barrier of the same name are different barriers.
  const std::string name =
      absl::StrCat(request->gather() ? "all-gather " : "barrier ", request->name());
  {
    MutexLock lock(mutex_);
    ticket = next_ticket_++;
    parked_bytes_ += *bytes;
    parked_[ticket] = {call, request->gather(), std::move(given), *bytes, 0};
    if (draining_) {
      answers = {{ticket, rpc::DrainingError(self_, kBarrierCall)}};
    } else if (parked_bytes_ > kMaxParkedBytes) {
      answers = {{ticket, TooManyBytes()}};
    } else {
      answers = ledger_.EnterBarrier(ticket, call->caller().name, call->caller().incarnation,
                                     call->session_epoch(), name,
                                     {request->members().begin(), request->members().end()});
    }
  }
  Deliver(answers);
  if (timeout > absl::ZeroDuration()) Arm(ticket, timeout);
  call->OnCancel([this, ticket] { GiveUp(ticket); });
}

void RegistrarService::Arm(RegistrarLedger::Ticket ticket, absl::Duration timeout) {
  const TimerQueue::Id timer =
      timers_.RunAfter(timeout, [this, ticket, timeout] { Expire(ticket, timeout); });
  {
    MutexLock lock(mutex_);
    auto it = parked_.find(ticket);
    if (it != parked_.end()) {
      it->second.timer = timer;
      return;
    }
  }
  timers_.Cancel(timer);
}

RegistrarService::Parked RegistrarService::TakeParked(RegistrarLedger::Ticket ticket) {
  Parked parked;
  {
    MutexLock lock(mutex_);
    auto it = parked_.find(ticket);
    if (it == parked_.end()) return parked;
    parked = std::move(it->second);
    parked_bytes_ -= parked.bytes;
    parked_.erase(it);
  }
  if (parked.timer != 0) timers_.Cancel(parked.timer);
  return parked;
}

void RegistrarService::Expire(RegistrarLedger::Ticket ticket, absl::Duration timeout) {
  std::optional<std::vector<std::string>> missing;
  {
    MutexLock lock(mutex_);
    missing = ledger_.Missing(ticket);
    if (!ledger_.Withdraw(ticket)) return;
  }
  Parked parked = TakeParked(ticket);
  if (parked.call == nullptr) return;
  parked.call->Reply(absl::DeadlineExceededError(absl::StrCat(
      parked.gather ? "all-gather" : "barrier", ": waited ", absl::FormatDuration(timeout), " for ",
      missing->empty() ? "members that have not joined" : absl::StrJoin(*missing, ", "))));
}

void RegistrarService::GiveUp(RegistrarLedger::Ticket ticket) {
  {
    MutexLock lock(mutex_);
    if (!ledger_.Withdraw(ticket)) return;  // the barrier has completed and is being answered
  }
  Parked parked = TakeParked(ticket);
  if (parked.call == nullptr) return;
  parked.call->Reply(absl::CancelledError("barrier: given up before all had arrived"));
}

void RegistrarService::Drain() {
  RegistrarLedger::Answers answers;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    // A call that cannot be withdrawn was answered by the ledger, and its answer is about to be
    // sent.
    for (const auto& [ticket, parked] : parked_) {
      if (ledger_.Withdraw(ticket))
        answers.push_back({ticket, rpc::DrainingError(self_, kBarrierCall)});
    }
  }
  Deliver(answers);
}

void RegistrarService::Deliver(const RegistrarLedger::Answers& answers) {
  std::vector<Parked> met;
  for (const RegistrarLedger::Answer& answer : answers) {
    Parked parked = TakeParked(answer.ticket);
    if (parked.call == nullptr) continue;
    if (!answer.status.ok()) {
      parked.call->Reply(answer.status);
    } else {
      met.push_back(std::move(parked));
    }
  }
  if (met.empty()) return;
  const rpc::Payload gathered = Gathered(met);
  for (const Parked& parked : met) {
    if (parked.call->BeginApply()) {
      parked.call->Reply(gathered);
    } else {
      parked.call->Reply(absl::CancelledError("barrier: given up as the last member arrived"));
    }
  }
}

rpc::Payload RegistrarService::Gathered(std::vector<Parked>& met) {
  v1::RegistrarBarrierReply reply;
  std::vector<Buffer> buffers;
  for (Parked& parked : met) {
    if (!parked.gather) continue;
    reply.add_names(parked.call->caller().name);
    reply.add_buffers(static_cast<uint32_t>(parked.given.size()));
    std::move(parked.given.begin(), parked.given.end(), std::back_inserter(buffers));
  }
  rpc::Payload payload = PlainPayload(reply);
  payload.buffers = std::move(buffers);
  return payload;
}

void RegistrarService::SessionEnded(const rpc::PeerInfo& peer, uint64_t epoch,
                                    Departure departure) {
  RegistrarLedger::Answers answers;
  bool left = false;
  {
    MutexLock lock(mutex_);
    // When this worker stops, all sessions here end.
    if (draining_ || peer.name == self_) departure = Departure::kOrderly;
    const size_t before = ledger_.size();
    answers = ledger_.Leave(peer.name, peer.incarnation, epoch, departure);
    left = ledger_.size() < before;
  }
  Deliver(answers);
  if (!left) return;
  const bool orderly = departure == Departure::kOrderly;
  logger_.Log(
      LogLevel::kInfo, "worker_left",
      absl::StrCat(peer.name, orderly ? " left" : " is lost: its session ended without a goodbye"),
      {{"worker", peer.name}, {"incarnation", IncarnationToString(peer.incarnation)}});
}

}  // namespace psd::server
