// CallerSession: how a session on a peer ends. It is lost with the peer's incarnation or its lease,
// or it ends in order when the peer stops. This file decides which calls fail then, and what is
// known about their fate.

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/caller_session.h"
#include "core/rpc/draining.h"

namespace psd::rpc {

absl::Status CallerSession::WrongIncarnation(Incarnation meant, Incarnation actual) const {
  return WithDetail(absl::AbortedError(absl::StrCat(
                        "the call was for incarnation ", IncarnationToString(meant), " of ",
                        peer_.name, ", but incarnation ", IncarnationToString(actual),
                        " answers there now: it was restarted")),
                    ErrorDetail{peer_.name, "", "look up its names again", false});
}

absl::Status CallerSession::Unreachable() const {
  return WithRemedy(absl::UnavailableError(absl::StrCat(self_.name, " and ", peer_.name,
                                                        " are not connected and ", peer_.name,
                                                        " has no address to dial")),
                    "let one of the two listen (option `listen`)");
}

absl::Status CallerSession::NoAnswer() const {
  return WithRemedy(
      absl::UnavailableError(absl::StrCat(
          peer_.name, " did not answer for ", absl::FormatDuration(options_.retry_window),
          address_.empty() ? "" : " at ", address_, trouble_.empty() ? "" : ": ", trouble_)),
      "check that it runs and that the network reaches it");
}

// Returns the error for a call whose deadline has passed. If the peer cannot be reached, the error
// says so.
absl::Status CallerSession::Expired() const {
  const std::string late =
      absl::StrCat("the call to ", peer_.name, " ran for more than its timeout");
  if (state_ == State::kOpen || trouble_.empty()) return absl::DeadlineExceededError(late);
  return WithRemedy(absl::DeadlineExceededError(
                        absl::StrCat(late, "; ", peer_.name, " cannot be reached",
                                     address_.empty() ? "" : " at ", address_, ": ", trouble_)),
                    "check that it runs, its address, and that the network reaches it");
}

void CallerSession::LoseSession(const absl::Status& reason, const absl::Status& error,
                                absl::FunctionRef<bool(const Pending&)> fails_too,
                                Actions& actions) {
  const bool had_session = epoch_ != 0;
  // This comes before the calls fail: a caller may react to the failure at once, and must then find
  // that the session is lost.
  if (had_session) actions.push_back(SessionLostAction{peer_, epoch_, reason});
  // A mutation that was numbered in this session must never be sent in another.
  FailWhere(
      [&](const Pending& call) {
        if (FaultOn("mutation_sent_in_the_next_session")) return false;
        return call.sequence != 0 ||
               (had_session && call.spec.session_bound && OfSession(call.spec)) ||
               call.spec.only_epoch != 0 || fails_too(call);
      },
      error, actions);
  epoch_ = 0;
  next_sequence_ = 1;
  settled_ = SequenceSet();
  given_up_.clear();
  in_flight_ = 0;
  unannounced_ = 0;
  unannounced_bytes_ = 0;
  unannounced_reads_ = 0;
}

absl::Status CallerSession::SessionGone(const CallSpec& spec) const {
  const std::string there =
      spec.only_incarnation == 0
          ? peer_.name
          : absl::StrCat("incarnation ", IncarnationToString(spec.only_incarnation), " of ",
                         peer_.name);
  return WithDetail(
      absl::AbortedError(absl::StrCat("the call was for the session (epoch ", spec.only_epoch,
                                      ") of ", self_.name, " on ", there, ", which has ended")),
      ErrorDetail{peer_.name, "", "fetch what you need again in the new session, in a new context",
                  false});
}

void CallerSession::OnRestarted(Incarnation now_there, Actions& actions) {
  absl::Status reason = WrongIncarnation(peer_.incarnation, now_there);
  // Without a session, a call that was not sent may go to any incarnation, unless it names one.
  const bool had_session = epoch_ != 0;
  LoseSession(
      reason, reason,
      [this, had_session](const Pending& call) {
        return call.sends > 0 || (had_session && !call.spec.wait_for_ready &&
                                  !call.spec.connect_only && OfSession(call.spec));
      },
      actions);
}

void CallerSession::OnEnded(const absl::Status& why, Actions& actions) {
  absl::Status reason = WithDetail(
      absl::AbortedError(
          absl::StrCat("the session (epoch ", epoch_, ") of ", self_.name, " (incarnation ",
                       IncarnationToString(self_.incarnation), ") on ", peer_.name,
                       " (incarnation ", IncarnationToString(peer_.incarnation),
                       ") has ended; the references and contexts it held there are gone",
                       why.ok() ? "" : ": ", why.message())),
      ErrorDetail{peer_.name, "", "fetch what you need again in the new session", false});
  LoseSession(
      reason, reason,
      [this](const Pending& call) {
        return call.spec.kind == MethodKind::kMutation && !call.spec.connect_only &&
               OfSession(call.spec) && (call.sends > 0 || !call.spec.wait_for_ready);
      },
      actions);
}

void CallerSession::OnSessionEnded(absl::Time now, LinkId link, const Header& ended,
                                   Actions& actions) {
  if (link != link_ || state_ != State::kOpen) return;
  // Otherwise the message is about an earlier session.
  if (ended.callee_incarnation != peer_.incarnation || ended.epoch != epoch_) return;
  lost_at_ = now;
  state_ = State::kGreeting;
  if (ended.incarnation != peer_.incarnation) {
    OnRestarted(ended.incarnation, actions);
    peer_.incarnation = ended.incarnation;
  } else {
    OnEnded(ended.status, actions);
  }
  Greet(now, actions);
}

absl::Status CallerSession::PeerStops() const {
  return DrainingError(peer_.name, "the call");
}

void CallerSession::OnLeaving(LinkId link, const Header& leaving, Actions& actions) {
  if (link != link_ || peer_leaving_) return;
  if (state_ == State::kGreeting && leaving.epoch == 0 && leaving.sequence == hello_number_) {
    // The peer has forgotten our session.
    return EndInDoubt([](uint64_t) { return true; }, actions);
  }
  if (state_ != State::kOpen) return;
  if (leaving.callee_incarnation != peer_.incarnation || leaving.epoch != epoch_) return;
  peer_leaving_ = true;
  FailWhere([](const Pending& call) { return call.sends == 0 && !call.spec.wait_for_ready; },
            PeerStops(), actions);
  SayGoodbyeIfDone(actions);
}

void CallerSession::SayGoodbyeIfDone(Actions& actions) {
  if (!peer_leaving_ || state_ != State::kOpen) return;
  for (const auto& [id, call] : pending_) {
    if (call.sends > 0) return;
  }
  Header goodbye;
  goodbye.kind = MessageKind::kGoodbye;
  goodbye.epoch = epoch_;
  goodbye.callee_incarnation = peer_.incarnation;
  SendControl(link_, std::move(goodbye), actions);
  EndWithPeer(actions);
}

void CallerSession::OnLeft(LinkId link, const Header& left, Actions& actions) {
  if (link != link_ || state_ != State::kOpen) return;
  if (left.callee_incarnation != peer_.incarnation || left.epoch != epoch_) return;
  SequenceSet in_doubt;
  in_doubt.AddAll(left.ack);
  EndInDoubt([&](uint64_t sequence) { return in_doubt.Contains(sequence); }, actions);
}

// Fails all pending calls. For a mutation that was sent, `may_be_applied` says whether the peer may
// have applied it. For all others the peer has confirmed that it did not, which settles them like
// an answer.
void CallerSession::EndInDoubt(absl::FunctionRef<bool(uint64_t sequence)> may_be_applied,
                               Actions& actions) {
  for (auto& [id, call] : pending_) {
    if (call.sequence == 0 || !may_be_applied(call.sequence)) call.sends = 0;
  }
  state_ = State::kLeft;
  FailWhere(
      [](const Pending& call) { return call.sends > 0; },
      absl::UnavailableError(absl::StrCat(
          peer_.name, " has stopped before its answer arrived; the call may have been applied")),
      actions);
  EndWithPeer(actions);
}

void CallerSession::EndWithPeer(Actions& actions) {
  peer_leaving_ = false;
  state_ = State::kLeft;
  expected_back_ = false;
  trouble_ = "it is draining (it is about to stop)";
  const absl::Status ended =
      WithRemedy(absl::UnavailableError(absl::StrCat(
                     peer_.name, " has stopped in order; the references and contexts that ",
                     self_.name, " held there are gone")),
                 "look up its names again when it is back");
  LoseSession(
      ended, PeerStops(),
      [](const Pending& call) { return !call.spec.wait_for_ready || call.sends > 0; }, actions);
}

void CallerSession::OnPeerGone(bool left, Actions& actions) {
  expected_back_ = false;
  leaving_ = leaving_ || left;
  if (state_ == State::kDown) GiveUpIfGone(actions);
}

void CallerSession::GiveUpIfGone(Actions& actions) {
  if (!leaving_ && (Dialable() || expected_back_)) return;
  if (!Dialable()) {
    FailWhere([](const Pending& call) { return !call.spec.wait_for_ready; }, Unreachable(),
              actions);
  }
  const absl::Status left = absl::UnavailableError(absl::StrCat(peer_.name, " has left"));
  LoseSession(
      left, left, [](const Pending&) { return false; }, actions);
}

}  // namespace psd::rpc
