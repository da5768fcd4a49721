// The part of Core for values under creation: counts their forks, and answers the calls that wait
// for a creation to begin or to end.
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/rref/rref_core.h"
#include "proto/psd/v1/rref.pb.h"

namespace psd::rref {
namespace {

rpc::Request AskAbout(std::string method, GlobalId value) {
  v1::CreationOf out;
  out.set_value_incarnation(value.incarnation);
  out.set_value_counter(value.counter);
  rpc::Request request;
  request.method = std::move(method);
  request.payload.header = out.SerializeAsString();
  request.session_bound = true;
  return request;
}

absl::StatusOr<GlobalId> ValueAskedFor(rpc::ServerCall& call) {
  v1::CreationOf in;
  if (in.ParseFromString(call.payload().header)) {
    return GlobalId{in.value_incarnation(), in.value_counter()};
  }
  return absl::InvalidArgumentError(absl::StrCat(call.method(), ": these bytes are no message"));
}

// Options without a timeout, for calls that last as long as a creation. The end of a creation is
// always reported.
rpc::CallOptions Endless() {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  return options;
}

void ReplyToAll(const Creations::Calls& calls, const absl::Status& status) {
  for (const Creations::Call& call : calls) {
    call->Reply(status.ok() ? absl::StatusOr<rpc::Payload>(rpc::Payload{}) : status);
  }
}

}  // namespace

// ---- the owner

absl::Status Core::BeginCreation(GlobalId value, GlobalId fork, SessionKey session) {
  Creations::Calls waited;
  {
    MutexLock lock(mutex_);
    if (creations_.UnderWay(value)) {
      return absl::AlreadyExistsError(
          absl::StrCat("value ", value.ToString(), " is being made: choose another id"));
    }
    PSD_RETURN_IF_ERROR(AddForkLocked(value, fork, session));
    waited = creations_.Begin(value);
  }
  ReplyToAll(waited, absl::OkStatus());
  return absl::OkStatus();
}

void Core::EndCreation(GlobalId value, const absl::Status& made) {
  Creations::Calls waited;
  std::optional<Promise<store::EntryPtr>> awaited;
  {
    MutexLock lock(mutex_);
    waited = creations_.End(value);
    auto handles = awaited_.find(value);
    if (handles != awaited_.end()) {
      awaited.emplace(handles->second);
      awaited_.erase(handles);
    }
  }
  if (!FaultOn("made_for_nobody")) FreeIfUnheld({value});
  ReplyToAll(waited, made);
  if (awaited.has_value()) awaited->Set(made.ok() ? Find(value) : made);
}

absl::StatusOr<store::EntryPtr> Core::Find(GlobalId value) {
  Gate::Entry entry(gate_);
  if (!entry.open()) return absl::CancelledError(absl::StrCat(self_.name, " is shutting down"));
  return store_.Get(value);
}

void Core::OnBegun(const std::shared_ptr<rpc::ServerCall>& call) {
  absl::StatusOr<GlobalId> value = ValueAskedFor(*call);
  if (!value.ok()) return call->Reply(value.status());
  if (value->incarnation != call->caller().incarnation) {
    return call->Reply(absl::InvalidArgumentError(
        absl::StrCat("rref.begun: the value ", value->ToString(), " is not the caller's")));
  }
  bool waits;
  {
    MutexLock lock(mutex_);
    waits = creations_.AwaitBegin(*value, call);
  }
  if (!waits) return call->Reply(rpc::Payload{});
  GiveUpWhenCancelled(call, *value);
}

void Core::OnMade(const std::shared_ptr<rpc::ServerCall>& call) {
  absl::StatusOr<GlobalId> value = ValueAskedFor(*call);
  if (!value.ok()) return call->Reply(value.status());
  bool waits;
  {
    MutexLock lock(mutex_);
    waits = creations_.AwaitEnd(*value, call);
  }
  if (waits) return GiveUpWhenCancelled(call, *value);
  absl::Status here = store_.Get(*value).status();
  call->Reply(here.ok() ? absl::StatusOr<rpc::Payload>(rpc::Payload{}) : here);
}

// Answers the waiting call if its caller cancels it or the caller's session ends.
void Core::GiveUpWhenCancelled(const std::shared_ptr<rpc::ServerCall>& call, GlobalId value) {
  call->OnCancel([core = shared_from_this(), call, value] {
    {
      MutexLock lock(core->mutex_);
      if (!core->creations_.Forget(value, call)) return;
    }
    call->Reply(absl::CancelledError(absl::StrCat(call->method(), ": cancelled")));
  });
}

void Core::EndWaiting() {
  Creations::Calls waiting;
  {
    MutexLock lock(mutex_);
    waiting = creations_.TakeAll();
  }
  ReplyToAll(waiting, absl::UnavailableError(absl::StrCat(self_.name, " is shutting down")));
}

void Core::EndAwaiting() {
  absl::flat_hash_map<GlobalId, Promise<store::EntryPtr>> awaited;
  {
    MutexLock lock(mutex_);
    awaited.swap(awaited_);
  }
  for (const auto& [value, promise] : awaited)
    promise.Set(absl::UnavailableError(absl::StrCat(self_.name, " is shutting down")));
}

// ---- the holder of a reference

Future<Unit> Core::Passable(const RRef& rref) {
  Future<Unit> confirmed = rref.body()->confirmed();
  const auto body = std::dynamic_pointer_cast<const UserBody>(rref.body());
  if (confirmed.IsReady() || (body != nullptr && body->borrowed())) return confirmed;
  Gate::Entry entry(gate_);
  if (!entry.open()) return confirmed;
  Promise<Unit> passable;
  rpc::Call begun =
      agent_.StartCall(rref.owner(), AskAbout("rref.begun", rref.value_id()), Endless());
  begun.reply().OnReady([passable, body](const absl::StatusOr<rpc::Reply>& reply) {
    if (!reply.ok()) return;  // confirmed() will fail with the reason
    if (body != nullptr) body->Begun(reply->callee.incarnation);
    passable.Set(Unit{});
  });
  confirmed.OnReady([passable, begun](const absl::StatusOr<Unit>& created) {
    begun.Cancel();
    passable.Set(created);
  });
  return passable.future();
}

void Core::AskWhenMade(const RRef& fork, uint64_t epoch) {
  Gate::Entry entry(gate_);
  const std::weak_ptr<const RRef::Body> waiting = fork.body();
  const auto tell = [waiting](const absl::Status& status) {
    const auto body = std::dynamic_pointer_cast<const UserBody>(waiting.lock());
    if (body != nullptr) body->Made(status);
  };
  if (!entry.open()) return tell(absl::CancelledError("this worker is shutting down"));
  rpc::Request request = AskAbout("rref.made", fork.value_id());
  request.only_incarnation = fork.body()->owner_incarnation();
  // An answer in a later session would be about a value that this fork no longer keeps alive.
  request.only_epoch = epoch;
  agent_.StartCall(fork.owner(), std::move(request), Endless())
      .reply()
      .OnReady([tell](const absl::StatusOr<rpc::Reply>& reply) { tell(reply.status()); });
}

}  // namespace psd::rref
