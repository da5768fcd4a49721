#include "core/rpc/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::rpc {
namespace {

// The most names and fenced incarnations that are remembered beyond those of existing sessions.
constexpr size_t kMaxFenced = 65'536;

}  // namespace

SessionTable::SessionTable(const SessionOptions& options, PeerInfo self, size_t max_sessions)
    : options_(options),
      self_(std::move(self)),
      shares_(max_sessions),
      names_(kMaxFenced + max_sessions) {}

absl::Status SessionTable::CheckFence(const PeerInfo& peer) const {
  if (!names_.IsFenced(peer.incarnation) || FaultOn("fence_forgotten")) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("incarnation ", IncarnationToString(peer.incarnation),
                                         " of ", peer.name,
                                         " is fenced: a newer one took its name over"));
}

HelloOutcome SessionTable::OnHello(absl::Time now, LinkId link, const std::string& origin,
                                   const Header& hello, Actions& actions) {
  using Kind = HelloOutcome::Kind;
  if (absl::Status fenced = CheckFence({hello.name, hello.incarnation}); !fenced.ok()) {
    return {Kind::kRefused, 0, false, std::move(fenced)};
  }
  HelloOutcome outcome = Admit(now, origin, hello, actions);
  if (outcome.kind != Kind::kWelcome) return outcome;
  CalleeSession& session = *sessions_.at(outcome.epoch);
  shares_.Release(session.origin());
  shares_.Take(origin);
  session.OnHello(hello.sequence, link, origin);
  session.OnHeard(now);
  if (outcome.resumed && !session.OnAck(hello.ack, actions)) {
    // A peer that breaks the protocol must not make this worker keep remembered answers.
    End(session.epoch(), actions);
    return {Kind::kRefused, 0, false,
            absl::InvalidArgumentError(
                absl::StrCat("the hello of ", hello.name, " acknowledges beyond all bounds"))};
  }
  return outcome;
}

HelloOutcome SessionTable::Admit(absl::Time now, const std::string& origin, const Header& hello,
                                 Actions& actions) {
  using Kind = HelloOutcome::Kind;
  const PeerInfo peer{hello.name, hello.incarnation};
  const CalleeSession* former = nullptr;  // the session whose place becomes free
  if (auto held = epochs_.find(peer.name); held != epochs_.end()) {
    const CalleeSession& holder = *sessions_.at(held->second);
    if (holder.caller().incarnation != peer.incarnation) {
      absl::Status may = MayTakeOver(now, holder);
      if (!may.ok()) return {Kind::kRefused, 0, false, std::move(may)};
    } else if (hello.sequence <= holder.hello_number()) {
      return {};
    } else if (hello.epoch == holder.epoch() && hello.callee_incarnation == self_.incarnation) {
      return {Kind::kWelcome, holder.epoch(), true, absl::OkStatus()};
    }
    former = &holder;
  }
  // A worker that is leaving still serves itself, so that the work that it has accepted can end.
  if (leaving_ && peer.incarnation != self_.incarnation)
    return {Kind::kLeaving, 0, false, absl::OkStatus()};
  absl::Status room =
      former != nullptr ? shares_.CheckExchange(former->origin(), origin) : shares_.Check(origin);
  if (!room.ok()) return {Kind::kRefused, 0, false, Annotate(room, self_.name)};
  if (former != nullptr) End(former->epoch(), actions);
  absl::StatusOr<uint64_t> epoch = Open(now, origin, peer);
  if (!epoch.ok()) return {Kind::kRefused, 0, false, Annotate(epoch.status(), self_.name)};
  return {Kind::kWelcome, *epoch, false, absl::OkStatus()};
}

absl::StatusOr<uint64_t> SessionTable::Open(absl::Time now, const std::string& origin,
                                            const PeerInfo& peer) {
  MemoryCharge charge;
  // This worker's calls to itself are not charged here. Those of unary clients are charged by the
  // gateway.
  if (options_.memory != nullptr && peer.incarnation != self_.incarnation) {
    PSD_ASSIGN_OR_RETURN(charge, options_.memory->Charge(CalleeSession::kSessionBytes));
  }
  const uint64_t epoch = next_epoch_++;
  epochs_[peer.name] = epoch;
  names_.Take(peer.name, peer.incarnation);
  sessions_[epoch] =
      std::make_unique<CalleeSession>(options_, peer, epoch, origin, now, std::move(charge));
  shares_.Take(origin);
  return epoch;
}

absl::Status SessionTable::MayTakeOver(absl::Time now, const CalleeSession& holder) const {
  if (holder.link() == 0 && !holder.silent()) return absl::OkStatus();
  std::string held =
      absl::StrCat("the name ", holder.caller().name, " is held on ", self_.name,
                   " by incarnation ", IncarnationToString(holder.caller().incarnation));
  if (holder.link() != 0 && now - holder.last_heard() <= options_.silence) {
    return WithRemedy(absl::AlreadyExistsError(absl::StrCat(held, ", which is connected")),
                      "choose another name or stop it");
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
  shares_.Release(session->origin());
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
