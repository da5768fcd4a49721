// AgentCore: runs the functions of calls, and shuts down.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/nearest_name.h"
#include "core/base/status.h"
#include "core/rpc/agent_core.h"

namespace psd::rpc {

absl::Status AgentCore::UnknownMethod(const std::string& name) const {
  NearestNameFinder finder(name);
  for (const auto& [known, method] : methods_) finder.Consider(known);
  return WithDetail(
      absl::NotFoundError(absl::StrCat("worker ", options_.self.name, " has no method \"", name,
                                       "\"", DidYouMean(finder.nearest()))),
      ErrorDetail{options_.self.name, name, "register it there", false});
}

const Method* AgentCore::Find(const std::string& name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

void AgentCore::Dispatch(const std::shared_ptr<ServedCall>& call, const Method& method) {
  if (method.kind == MethodKind::kMutation && call->sequence() == 0) {
    return call->Reply(absl::InvalidArgumentError(absl::StrCat(
                           "method ", method.name, " changes things, but was called as a read")),
                       {});
  }
  Submit(call, method);
}

void AgentCore::Submit(const std::shared_ptr<ServedCall>& call, const Method& method) {
  if (method.runs_on == RunsOn::kCarrierThread) return Run(call, method);
  const bool is_users = method.runs_on == RunsOn::kUserQueue;
  absl::Status queued = options_.executor->SubmitAs(
      LabelOf(is_users ? WorkLabel::Kind::kUser : WorkLabel::Kind::kOwn, *call),
      [self = shared_from_this(), call, &method] { self->Run(call, method); });
  if (!queued.ok()) call->Reply(Annotate(queued, options_.self.name), {});
}

void AgentCore::Run(const std::shared_ptr<ServedCall>& call, const Method& method) {
  bool begin = false;
  {
    MutexLock lock(mutex_);
    begin = !stopped_ && sessions_.BeginRun(call->session_epoch(), call->id());
  }
  if (begin) return method.handler(call);
  call->Reply(absl::CancelledError(absl::StrCat("cancelled before ", method.name, " began")), {});
}

Reach AgentCore::ReachOf(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.callers().find(name);
  if (found == sessions_.callers().end() || found->second->Forgettable()) return Reach::kUnknown;
  return found->second->unreachable() ? Reach::kLost : Reach::kReachable;
}

SessionOnPeer AgentCore::SessionOn(const std::string& peer) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.callers().find(peer);
  if (found == sessions_.callers().end()) return {};
  return {found->second->peer_info().incarnation, found->second->epoch()};
}

std::vector<PeerStatus> AgentCore::Peers() const {
  std::map<std::string, PeerStatus> peers;  // by name
  MutexLock lock(mutex_);
  const auto set_link = [this](LinkId id, PeerStatus& status) PSD_NO_THREAD_SAFETY_ANALYSIS {
    const auto link = links_.find(id);
    if (link == links_.end()) return;
    status.link = link->second->Description();
    status.why_not_shared = link->second->WhyNotShared();
  };
  absl::Time now = Now();
  for (const auto& [name, caller] : sessions_.callers()) {
    PeerStatus& status = peers[name];
    status.peer = caller->peer_info();
    status.address = caller->address();
    status.connected = caller->state() == CallerSession::State::kOpen;
    status.trouble = caller->trouble();
    status.epoch_there = caller->epoch();
    status.calls_pending = caller->pending();
    set_link(caller->link(), status);
  }
  for (const auto& [epoch, callee] : sessions_.table().sessions()) {
    PeerStatus& status = peers[callee->caller().name];
    status.peer = callee->caller();
    status.connected = status.connected || callee->link() != 0;
    status.epoch_here = epoch;
    status.lease_left = callee->lease_until() - now;
    status.calls_serving = callee->running();
    status.answers_remembered = callee->remembered();
    set_link(callee->link(), status);
  }
  peers.erase(options_.self.name);
  std::vector<PeerStatus> sorted;
  for (auto& [name, status] : peers) sorted.push_back(std::move(status));
  return sorted;
}

void AgentCore::Await(absl::Duration limit, absl::FunctionRef<bool(absl::Time now)> done) {
  const absl::Time until = Clock::Steady().Now() + limit;
  MutexLock lock(mutex_);
  while (!stopped_ && !done(Now())) {
    const absl::Duration left = until - Clock::Steady().Now();
    if (left <= absl::ZeroDuration()) return;
    progress_.WaitFor(mutex_, left);
  }
}

void AgentCore::AwaitIdle(absl::Duration limit) {
  Await(limit, [this](absl::Time) PSD_NO_THREAD_SAFETY_ANALYSIS { return sessions_.Idle(); });
}

void AgentCore::Shutdown(absl::Duration drain) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(shutting_down_, true)) return;
  }
  BeginDraining(/*answers_waiting=*/drain > absl::ZeroDuration());
  Await(drain,
        [this](absl::Time now) PSD_NO_THREAD_SAFETY_ANALYSIS { return sessions_.Settled(now); });
  Actions actions;
  {
    MutexLock lock(mutex_);
    sessions_.Leave(actions);
    stopped_ = true;
  }
  Perform(std::move(actions));
  options_.carrier->Shutdown();
  absl::flat_hash_map<LinkId, LinkPtr> links;  // destroyed after the lock
  std::vector<std::shared_ptr<carrier::LinkHandler>> loopback;
  MutexLock lock(mutex_);
  links.swap(links_);
  loopback.swap(loopback_);
}

}  // namespace psd::rpc
