// The part of Core for releases: tells the owners which forks are no longer held, and handles such
// messages on the owner.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/rref/rref_core.h"
#include "proto/psd/v1/rref.pb.h"

namespace psd::rref {
namespace {

constexpr absl::Duration kReleaseTimeout = absl::Seconds(60);

}  // namespace

// ---- the owner

void Core::OnRelease(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::ReleaseForks in;
  const bool parsed = in.ParseFromString(call->payload().header);
  const int count = in.fork_counters_size();
  if (!parsed || in.value_counters_size() != count || in.value_incarnations_size() != count ||
      in.fork_incarnations_size() != count) {
    return call->Reply(absl::InvalidArgumentError("rref.release: its columns disagree"));
  }
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("release cancelled"));
  const SessionKey session = KeyOf(call->caller(), call->session_epoch());
  std::vector<GlobalId> freed;
  {
    MutexLock lock(mutex_);
    for (int i = 0; i < count; ++i) {
      GlobalId value{in.value_incarnations(i), in.value_counters(i)};
      GlobalId fork{in.fork_incarnations(i), in.fork_counters(i)};
      if (owners_.DeleteFork(value, fork, session)) freed.push_back(value);
    }
  }
  FreeIfUnheld(freed);
  call->Reply(rpc::Payload{});
}

// ---- the worker that held the forks

void Core::ReleaseAll() {
  Releases releases;
  std::vector<std::string> resting;
  {
    MutexLock lock(mutex_);
    in_a_hurry_ = true;
    loans_.Clear();
    releases = users_.ReleaseAll(absl::FailedPreconditionError(
        absl::StrCat("all RRefs of ", self_.name, " were released: it is shutting down")));
    for (const auto& [owner, outbox] : outboxes_) resting.push_back(owner);
  }
  Queue(releases);
  for (const std::string& owner : resting) SendNext(owner);
}

// The first release to an owner is sent at once. Releases that are queued before it is answered and
// the pause after it is over are sent together in the next messages.
void Core::Queue(const Releases& releases) {
  std::vector<std::string> ready;
  {
    MutexLock lock(mutex_);
    for (const ForkRelease& release : releases) {
      auto [outbox, added] = outboxes_.try_emplace(release.owner);
      if (added) ready.push_back(release.owner);
      outbox->second.Add(release);
    }
  }
  for (const std::string& owner : ready) SendNext(owner);
}

void Core::SendNext(const std::string& owner) {
  Gate::Entry entry(gate_);
  if (!entry.open()) return;  // the sessions are ending, and all forks end with them
  std::optional<Outbox::Message> message;
  {
    MutexLock lock(mutex_);
    auto outbox = outboxes_.find(owner);
    if (outbox != outboxes_.end()) message = outbox->second.Next(clock_.Now());
  }
  if (!message.has_value()) return;
  rpc::Request request;
  request.method = "rref.release";
  request.only_incarnation = message->owner_incarnation;
  message->forks.SerializeToString(&request.payload.header);
  rpc::CallOptions options;
  options.timeout = kReleaseTimeout;
  options.wait_for_ready = true;
  // An error means that the session has ended or is about to end. The forks end with it.
  agent_.StartCall(owner, std::move(request), options)
      .reply()
      .OnReady([core = shared_from_this(), owner](const absl::StatusOr<rpc::Reply>& reply) {
        core->Released(owner, reply.ok());
      });
}

void Core::Released(const std::string& owner, bool told) {
  Gate::Entry entry(gate_);
  if (!entry.open()) return;
  absl::Duration rest;
  {
    MutexLock lock(mutex_);
    auto outbox = outboxes_.find(owner);
    rest = outbox->second.Answered(clock_.Now());
    if (in_a_hurry_) rest = absl::ZeroDuration();
    const bool leaving = in_a_hurry_ && !told;  // the end of the session releases the rest
    if (outbox->second.empty() || leaving) return static_cast<void>(outboxes_.erase(outbox));
  }
  if (rest <= absl::ZeroDuration()) return SendNext(owner);
  timers_.RunAfter(rest, [core = shared_from_this(), owner] { core->SendNext(owner); });
}

}  // namespace psd::rref
