// References that are passed between workers when the sender is not their owner.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/rref/rref_core.h"
#include "proto/psd/v1/rref.pb.h"

namespace psd::rref {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

rpc::Request MakeRequest(std::string method, std::string header) {
  rpc::Request request;
  request.method = std::move(method);
  request.payload.header = std::move(header);
  return request;
}

rpc::CallOptions Patient() {
  rpc::CallOptions options;
  options.timeout = kTimeout;
  return options;
}

}  // namespace

// ---- the sender

absl::StatusOr<ForkData> Core::Lend(const RRef& rref, const rpc::PeerInfo& peer, uint64_t epoch) {
  ForkData data;
  data.owner = rref.owner();
  data.owner_incarnation = rref.body()->owner_incarnation();
  data.value = rref.value_id();
  data.parent = self_.name;
  data.name = rref.name();
  data.fork = ids_.Next();
  const SessionKey session = KeyOf(peer, epoch);
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(users_.AddChild(rref.body()->fork_id(), data.fork));
  // If the session has ended, nobody will return the loan.
  if (!loans_.Add(session, data.fork)) users_.ChildAccepted(data.fork);
  return data;
}

void Core::TakeBack(GlobalId child, SessionKey session) {
  std::optional<ForkRelease> release;
  {
    MutexLock lock(mutex_);
    if (!loans_.Return(session, child)) return;
    release = users_.ChildAccepted(child);
  }
  if (release.has_value()) Queue({*release});
}

void Core::OnCounted(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::ForkCounted in;
  if (!in.ParseFromString(call->payload().header)) {
    return call->Reply(absl::InvalidArgumentError("rref.counted: these bytes are no message"));
  }
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("rref.counted: cancelled"));
  TakeBack({in.fork_incarnation(), in.fork_counter()},
           KeyOf(call->caller(), call->session_epoch()));
  call->Reply(rpc::Payload{});
}

// ---- the receiver

// The sender keeps its fork, and thereby the value, until this worker's fork is counted: for an
// argument until the call is answered, for a reference in an answer until SayCounted.
absl::StatusOr<RRef> Core::Borrow(const ForkData& data) {
  ForkData mine = data;
  mine.fork = ids_.Next();
  RRef fork = User(mine, /*borrowed=*/true);
  AskToCount(fork, /*may_search=*/true);
  return fork;
}

void Core::AskToCount(const RRef& fork, bool may_search) {
  v1::CountFork out;
  out.set_value_incarnation(fork.value_id().incarnation);
  out.set_value_counter(fork.value_id().counter);
  out.set_fork_incarnation(fork.body()->fork_id().incarnation);
  out.set_fork_counter(fork.body()->fork_id().counter);
  Gate::Entry entry(gate_);
  if (!entry.open()) return Counted(fork, absl::CancelledError("this worker is shutting down"));
  if (may_search && find_peer_ != nullptr && agent_.ReachOf(fork.owner()) == rpc::Reach::kUnknown) {
    return find_peer_(fork.owner())
        .OnReady([core = shared_from_this(), fork](const absl::StatusOr<Unit>& found) {
          if (!found.ok()) return core->Counted(fork, found.status());
          core->AskToCount(fork, /*may_search=*/false);
        });
  }
  rpc::Request request = MakeRequest("rref.fork", out.SerializeAsString());
  request.only_incarnation = fork.body()->owner_incarnation();
  agent_.StartCall(fork.owner(), std::move(request), Patient())
      .reply()
      .OnReady([core = shared_from_this(), fork](const absl::StatusOr<rpc::Reply>& reply) {
        core->Counted(fork, reply);
      });
}

void Core::Counted(const RRef& fork, const absl::StatusOr<rpc::Reply>& reply) {
  const auto* body = dynamic_cast<const UserBody*>(fork.body().get());
  v1::CountForkReply out;
  if (reply.ok() && out.ParseFromString(reply->payload.header)) {
    if (!Confirm(*body, {reply->callee.incarnation, reply->epoch})) return;
    if (out.under_creation() && !FaultOn("creation_taken_for_ended"))
      return AskWhenMade(fork, reply->epoch);
    return body->Made(absl::OkStatus());
  }
  absl::Status named = Annotate(
      reply.ok() ? absl::InternalError("its owner's answer is no message") : reply.status(),
      fork.ToString());
  const auto detail = GetDetail(named);
  Fail(body->fork_id(), named, reply.ok() || (detail.has_value() && detail->fate_unknown));
  body->Fail(named);
}

void Core::SayCounted(const ForkData& data, const RRef& rref) {
  rref.body()->confirmed().OnReady([core = shared_from_this(), data](const absl::StatusOr<Unit>&) {
    if (data.parent == core->self_.name) {
      return core->TakeBack(data.fork, {core->self_.incarnation, 0});
    }
    v1::ForkCounted out;
    out.set_fork_incarnation(data.fork.incarnation);
    out.set_fork_counter(data.fork.counter);
    Gate::Entry entry(core->gate_);
    if (!entry.open()) return;
    // If this message is lost for good, the session has ended, and the loan with it.
    core->agent_.StartCall(data.parent, MakeRequest("rref.counted", out.SerializeAsString()),
                           Patient());
  });
}

// ---- the owner

void Core::OnFork(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::CountFork in;
  if (!in.ParseFromString(call->payload().header)) {
    return call->Reply(absl::InvalidArgumentError("rref.fork: these bytes are no message"));
  }
  const GlobalId value{in.value_incarnation(), in.value_counter()};
  const GlobalId fork{in.fork_incarnation(), in.fork_counter()};
  if (fork.incarnation != call->caller().incarnation) {
    return call->Reply(absl::InvalidArgumentError(
        absl::StrCat("rref.fork: the fork ", fork.ToString(), " is not the caller's")));
  }
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("rref.fork: cancelled"));
  const SessionKey session = KeyOf(call->caller(), call->session_epoch());
  if (const absl::Status counted = AddFork(value, fork, session); !counted.ok())
    return call->Reply(Annotate(counted, "rref.fork"));
  v1::CountForkReply out;
  {
    MutexLock lock(mutex_);
    out.set_under_creation(creations_.UnderWay(value));
  }
  // The fork was counted first, so a value that is found here now, or is being made, stays.
  absl::Status here = out.under_creation() ? absl::OkStatus() : store_.Get(value).status();
  if (here.ok()) return call->Reply(rpc::Payload{out.SerializeAsString(), {}});
  {
    MutexLock lock(mutex_);
    owners_.DeleteFork(value, fork, session);
  }
  call->Reply(here);
}

}  // namespace psd::rref
