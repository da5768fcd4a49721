#include "core/rpc/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"

namespace psd::rpc {
namespace {

// Names, and fenced incarnations, that are remembered beyond the sessions that live.
constexpr size_t kMaxFenced = 65'536;

}  // namespace

SessionTable::SessionTable(const SessionOptions& options, PeerInfo self, size_t max_sessions)
    : options_(options),
      self_(std::move(self)),
      max_sessions_(max_sessions),
      names_(kMaxFenced + max_sessions) {}

absl::Status SessionTable::CheckFence(const PeerInfo& peer) const {
  if (!names_.IsFenced(peer.incarnation) || FaultOn("fence_forgotten")) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("incarnation ", IncarnationToString(peer.incarnation),
                                         " of ", peer.name,
                                         " is fenced: a newer one took its name over"));
}

HelloOutcome SessionTable::OnHello(absl::Time now, LinkId link, const Header& hello,
                                   Actions& actions) {
  using Kind = HelloOutcome::Kind;
  PeerInfo peer{hello.name, hello.incarnation};
  if (absl::Status fenced = CheckFence(peer); !fenced.ok()) {
    return {Kind::kRefused, 0, false, std::move(fenced)};
  }
  bool resumed = false;
  if (auto held = epochs_.find(peer.name); held != epochs_.end()) {
    CalleeSession& holder = *sessions_.at(held->second);
    if (holder.caller().incarnation != peer.incarnation) {
      absl::Status may = MayTakeOver(now, holder);
      if (!may.ok()) return {Kind::kRefused, 0, false, std::move(may)};
      if (!leaving_) End(holder.epoch(), actions);
    } else if (hello.sequence <= holder.hello_number()) {
      return {};
    } else if (hello.epoch == holder.epoch() && hello.callee_incarnation == self_.incarnation) {
      resumed = true;
    } else if (!leaving_) {
      End(holder.epoch(), actions);
    }
  }
  if (!resumed && leaving_) return {Kind::kLeaving, 0, false, absl::OkStatus()};
  if (!resumed && sessions_.size() >= max_sessions_) {
    return {Kind::kRefused, 0, false,
            absl::ResourceExhaustedError(absl::StrCat(self_.name, " already has ", max_sessions_,
                                                      " sessions; raise max_sessions"))};
  }
  if (!resumed) {
    uint64_t epoch = next_epoch_++;
    epochs_[peer.name] = epoch;
    names_.Take(peer.name, peer.incarnation);
    sessions_[epoch] = std::make_unique<CalleeSession>(options_, peer, epoch, now);
  }
  CalleeSession& session = *sessions_.at(epochs_.at(peer.name));
  session.set_hello_number(hello.sequence);
  session.set_link(link);
  session.OnHeard(now);
  if (resumed && !session.OnAck(hello.ack, actions)) {
    // What it made us remember must not outlive the refusal.
    End(session.epoch(), actions);
    return {Kind::kRefused, 0, false,
            absl::InvalidArgumentError(
                absl::StrCat("the hello of ", peer.name, " acknowledges beyond all bounds"))};
  }
  return {Kind::kWelcome, session.epoch(), resumed, absl::OkStatus()};
}

absl::Status SessionTable::MayTakeOver(absl::Time now, const CalleeSession& holder) const {
  if (holder.link() == 0 && !holder.silent()) return absl::OkStatus();
  std::string held =
      absl::StrCat("the name ", holder.caller().name, " is held on ", self_.name,
                   " by incarnation ", IncarnationToString(holder.caller().incarnation));
  if (holder.link() != 0 && now - holder.last_heard() <= options_.silence) {
    return absl::AlreadyExistsError(
        absl::StrCat(held, ", which is connected; choose another name or stop it"));
  }
  return absl::UnavailableError(absl::StrCat(held, ", which is silent; it is free in ",
                                             absl::FormatDuration(holder.lease_until() - now)));
}

CalleeSession* SessionTable::Find(uint64_t epoch) {
  auto session = sessions_.find(epoch);
  return session == sessions_.end() ? nullptr : session->second.get();
}

CalleeSession* SessionTable::FindByPeer(const PeerInfo& peer) {
  auto epoch = epochs_.find(peer.name);
  if (epoch == epochs_.end()) return nullptr;
  CalleeSession* session = Find(epoch->second);
  return session->caller().incarnation == peer.incarnation ? session : nullptr;
}

PeerInfo SessionTable::HolderOf(const std::string& name) const {
  auto epoch = epochs_.find(name);
  return epoch == epochs_.end() ? PeerInfo{} : sessions_.at(epoch->second)->caller();
}

void SessionTable::End(uint64_t epoch, Actions& actions) {
  auto found = sessions_.find(epoch);
  if (found == sessions_.end()) return;
  std::unique_ptr<CalleeSession> session = std::move(found->second);
  sessions_.erase(found);
  epochs_.erase(session->caller().name);
  session->End(actions);
  actions.push_back(SessionEndedAction{session->caller(), epoch});
}

void SessionTable::Tick(absl::Time now, absl::Duration grace, Actions& actions) {
  std::vector<uint64_t> ended;
  for (auto& [epoch, session] : sessions_) {
    if (grace > absl::ZeroDuration()) session->ExtendLease(grace);
    if (session->lease_until() <= now) {
      ended.push_back(epoch);
    } else {
      session->Tick(now, actions);
    }
  }
  for (uint64_t epoch : ended) End(epoch, actions);
}

absl::Time SessionTable::NextWake() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [epoch, session] : sessions_) {
    next = std::min({next, session->lease_until(), session->next_deadline()});
  }
  return next;
}

}  // namespace psd::rpc
