#include "core/rpc/caller_session.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::rpc {
namespace {

// The most ranges of an acknowledgement that a request carries. A longer one is sent on its own.
constexpr size_t kMaxRidingRanges = 32;

uint64_t NextRandom(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Returns a third of the silence or of the lease, whichever is shorter. `lease_us` comes from the
// peer, so the result has a lower bound: a peer must not be able to keep this worker busy.
absl::Duration TalkEvery(absl::Duration silence, uint64_t lease_us) {
  constexpr absl::Duration kLeast = absl::Milliseconds(10);
  const absl::Duration lease =
      absl::Microseconds(static_cast<int64_t>(std::min<uint64_t>(lease_us, uint64_t{1} << 62)));
  if (lease_us == 0 || lease >= silence) return silence / 3;
  return std::max(lease / 3, kLeast);
}

}  // namespace

CallerSession::CallerSession(const SessionOptions& options, PeerInfo self, std::string peer,
                             uint64_t jitter_seed, uint64_t& hellos)
    : options_(options),
      self_(std::move(self)),
      peer_{std::move(peer), 0},
      hellos_(hellos),
      jitter_(jitter_seed),
      talk_every_(options.silence / 3) {}

// ---------------------------------------------------------------- calls

void CallerSession::Start(absl::Time now, CallId id, CallSpec spec, Actions& actions) {
  // While the session is not open, another incarnation than the last one may be there by now. Its
  // welcome tells.
  if (state_ == State::kOpen && !OfSession(spec)) {
    absl::Status status = WrongIncarnation(spec.only_incarnation, peer_.incarnation);
    actions.push_back(CompleteAction{std::move(spec.body), std::move(status), peer_});
    return;
  }
  if (spec.only_epoch != 0 && spec.only_epoch != epoch_) {
    absl::Status status =
        state_ == State::kLeft && OfSession(spec) ? PeerStops() : SessionGone(spec);
    actions.push_back(CompleteAction{std::move(spec.body), std::move(status), peer_});
    return;
  }
  if (state_ == State::kOpen && spec.connect_only) {
    actions.push_back(CompleteAction{std::move(spec.body), absl::OkStatus(), peer_});
    return;
  }
  if (PeerLeaves() && !spec.wait_for_ready) {
    actions.push_back(CompleteAction{std::move(spec.body), PeerStops(), peer_});
    return;
  }
  if (state_ == State::kDown && !Dialable() && !expected_back_ && !spec.wait_for_ready) {
    actions.push_back(CompleteAction{std::move(spec.body), Unreachable(), peer_});
    return;
  }
  next_expiry_ = std::min(next_expiry_, spec.deadline);
  last_call_ = id;
  Pending& call = pending_[id];
  call.spec = std::move(spec);
  call.started = now;
  if (state_ == State::kOpen && !peer_leaving_) {
    SendOrWait(id, call, actions);
    DrainWindow(actions);  // a message that was sent may have announced answers
    return;
  }
  next_expiry_ = std::min(next_expiry_, now + options_.retry_window);
  // A new call must not wait for the end of a long back-off.
  next_dial_ = std::min(next_dial_, now + options_.reconnect_min);
  MaybeDial(now, actions);
}

void CallerSession::Cancel(CallId id, Actions& actions) {
  auto call = pending_.find(id);
  if (call == pending_.end()) return;
  Fail(call, absl::CancelledError(absl::StrCat("the call to ", peer_.name, " was cancelled")),
       actions);
  AfterFailing(actions);
}

std::shared_ptr<Opaque> CallerSession::OnAnswer(const ReplyMeta& reply, size_t bytes,
                                                Actions& actions) {
  auto found = pending_.find(reply.call_id);
  if (found == pending_.end() || found->second.sends == 0 || reply.epoch != epoch_) return nullptr;
  const bool is_read = found->second.sequence == 0;
  const uint32_t sends = found->second.sends;
  if (is_read && reply.attempt != 0 && reply.attempt != sends) return nullptr;
  std::shared_ptr<Opaque> body = std::move(found->second.spec.body);
  uint64_t sequence = found->second.sequence;
  pending_.erase(found);
  if (!is_read && reply.attempt != 0) {
    // The answer itself was lost. The callee must be told that nobody holds what it gave.
    GiveUp(reply.call_id, sequence, actions);
  } else if (!is_read) {
    settled_.Add(sequence);
    --in_flight_;
    ++unannounced_;
    unannounced_bytes_ += bytes;
    AnnounceIfDue(actions);
    DrainWindow(actions);
  } else if (reply.attempt != 0) {
    ++unannounced_reads_;
    AnnounceIfDue(actions);
  } else if (sends > 1) {
    // The answer may be that of an earlier attempt. The answers to other attempts may give
    // something.
    GiveUp(reply.call_id, 0, actions);
  }
  SayGoodbyeIfDone(actions);
  return body;
}

void CallerSession::OnAnswerWithoutRoom(const ReplyMeta& reply, const absl::Status& why,
                                        Actions& actions) {
  auto call = pending_.find(reply.call_id);
  if (call == pending_.end() || call->second.sends == 0 || reply.epoch != epoch_) return;
  if (call->second.sequence == 0 && reply.attempt != 0 && reply.attempt != call->second.sends)
    return;
  absl::Status status = OfSelf(Annotate(
      why, absl::StrCat(peer_.name, " has answered, and ", self_.name, " cannot take the answer")));
  if (call->second.spec.kind == MethodKind::kMutation) {
    status = WithRemedy(status,
                        "the call may have been applied, so look at what it changed before you "
                        "call again");
  }
  Fail(call, std::move(status), actions);
  AfterFailing(actions);
}

void CallerSession::OnCancelled(CallId id, Actions& actions) {
  auto given_up = given_up_.find(id);
  if (given_up == given_up_.end()) return;
  if (given_up->second != 0) {
    settled_.Add(given_up->second);
    --in_flight_;
  } else {
    ++unannounced_reads_;  // the callee remembers the cancel until it is told that the call is over
  }
  given_up_.erase(given_up);
  AnnounceIfDue(actions);
  DrainWindow(actions);
}

void CallerSession::OnSendRefused(CallId id, const absl::Status& status, Actions& actions) {
  auto call = pending_.find(id);
  if (call == pending_.end()) return;
  --call->second.sends;  // this copy was not sent
  // Without memory for the request, this worker is the one that failed.
  Fail(call,
       absl::IsResourceExhausted(status)
           ? OfSelf(Annotate(
                 status,
                 absl::StrCat(self_.name, ", this worker, cannot queue a request to ", peer_.name)))
           : status,
       actions);
  AfterFailing(actions);
}

void CallerSession::SendOrWait(CallId id, Pending& call, Actions& actions) {
  if (call.spec.kind == MethodKind::kMutation && call.sequence == 0) {
    if (!WindowOpen() || !waiting_.empty()) {
      call.waits_for_window = true;
      waiting_.push_back(id);
      return;
    }
    call.sequence = next_sequence_++;
    ++in_flight_;
  }
  Send(id, call, actions);
}

void CallerSession::Send(CallId id, Pending& call, Actions& actions) {
  ++call.sends;
  RequestMeta meta{id,
                   call.sequence,
                   epoch_,
                   peer_.incarnation,
                   call.spec.deadline,
                   TakeAck(),
                   call.sequence == 0 ? call.sends : 0};
  actions.push_back(SendRequestAction{link_, std::move(meta), call.spec.body});
}

bool CallerSession::WindowOpen() const {
  return in_flight_ + unannounced_ < options_.max_unacknowledged_answers &&
         unannounced_bytes_ < options_.max_unacknowledged_bytes;
}

void CallerSession::DrainWindow(Actions& actions) {
  while (state_ == State::kOpen && !peer_leaving_ && !waiting_.empty()) {
    auto call = pending_.find(waiting_.front());
    if (call != pending_.end() && call->second.waits_for_window) {
      if (!WindowOpen()) return;
      call->second.waits_for_window = false;
      call->second.sequence = next_sequence_++;
      ++in_flight_;
      Send(call->first, call->second, actions);
    }
    waiting_.pop_front();
  }
}

Ack CallerSession::TakeAck() {
  if (FaultOn("acknowledgement_dropped")) return Ack{};
  if (settled_.ranges().size() > kMaxRidingRanges) return Ack{settled_.watermark(), {}};
  unannounced_ = 0;
  unannounced_bytes_ = 0;
  return settled_.ToAck();
}

void CallerSession::AnnounceIfDue(Actions& actions) {
  bool due = (unannounced_ + unannounced_reads_) * 4 >= options_.max_unacknowledged_answers ||
             unannounced_bytes_ * 4 >= options_.max_unacknowledged_bytes;
  if (due && state_ == State::kOpen) Announce(actions);
}

void CallerSession::Announce(Actions& actions) {
  Header header;
  header.kind = MessageKind::kKeepalive;
  header.epoch = epoch_;
  header.callee_incarnation = peer_.incarnation;
  header.ack = settled_.ToAck();
  header.call_id = LowestOpen();
  unannounced_ = 0;
  unannounced_bytes_ = 0;
  unannounced_reads_ = 0;
  SendControl(link_, std::move(header), actions);
  DrainWindow(actions);
}

CallId CallerSession::LowestOpen() const {
  CallId lowest = last_call_ + 1;
  for (const auto& [id, call] : pending_) lowest = std::min(lowest, id);
  for (const auto& [id, sequence] : given_up_) lowest = std::min(lowest, id);
  return lowest;
}

// ---------------------------------------------------------------- failing

void CallerSession::SendCancel(CallId id, uint64_t sequence, Actions& actions) {
  if (FaultOn("caller_does_not_cancel")) return;
  Header header;
  header.kind = MessageKind::kCancel;
  header.call_id = id;
  header.sequence = sequence;
  header.epoch = epoch_;
  header.callee_incarnation = peer_.incarnation;
  SendControl(link_, std::move(header), actions);
}

void CallerSession::GiveUp(CallId id, uint64_t sequence, Actions& actions) {
  given_up_.emplace(id, sequence);
  if (state_ == State::kOpen) SendCancel(id, sequence, actions);
}

void CallerSession::Fail(PendingMap::iterator call, absl::Status status, Actions& actions) {
  CallId id = call->first;
  Pending pending = std::move(call->second);
  pending_.erase(call);
  if (pending.sends > 0 && !FaultOn("given_up_counts_as_received")) {
    GiveUp(id, pending.sequence, actions);
  } else if (pending.sequence != 0) {  // no copy of it is anywhere
    settled_.Add(pending.sequence);
    --in_flight_;
  }
  if (!status.ok()) {
    ErrorDetail detail = GetDetail(status).value_or(ErrorDetail{});
    if (detail.worker.empty()) detail.worker = peer_.name;
    detail.fate_unknown = pending.sends > 0 && pending.spec.kind == MethodKind::kMutation;
    status = WithDetail(std::move(status), detail);
  }
  actions.push_back(CompleteAction{std::move(pending.spec.body), std::move(status), peer_});
}

absl::Status CallerSession::OfSelf(absl::Status status) const {
  ErrorDetail detail = GetDetail(status).value_or(ErrorDetail{});
  detail.worker = self_.name;
  return WithDetail(std::move(status), detail);
}

void CallerSession::AfterFailing(Actions& actions) {
  DrainWindow(actions);
  SayGoodbyeIfDone(actions);
}

void CallerSession::FailWhere(absl::FunctionRef<bool(const Pending&)> predicate,
                              const absl::Status& status, Actions& actions) {
  std::vector<CallId> ids;
  for (const auto& [id, call] : pending_) {
    if (predicate(call)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (CallId id : ids) {
    auto call = pending_.find(id);
    if (call != pending_.end()) Fail(call, status, actions);
  }
  AfterFailing(actions);
}

void CallerSession::CompleteAll(const absl::Status& status, Actions& actions) {
  FailWhere([](const Pending&) { return true; }, status, actions);
}

void CallerSession::FailExpired(absl::Time now, Actions& actions) {
  if (now < next_expiry_ || FaultOn("caller_waits_for_ever")) return;
  FailWhere([now](const Pending& call) { return call.spec.deadline <= now; }, Expired(), actions);
  bool open = state_ == State::kOpen;
  auto window_end = [this, open](const Pending& call) {
    // A call that was never sent and waits for ready may wait until its deadline.
    if (open || (call.spec.wait_for_ready && call.sends == 0)) return absl::InfiniteFuture();
    return std::max(call.started, lost_at_) + options_.retry_window;
  };
  if (!open) {
    FailWhere([&](const Pending& call) { return window_end(call) <= now; }, NoAnswer(), actions);
  }
  next_expiry_ = absl::InfiniteFuture();
  if (state_ == State::kGreeting) next_expiry_ = greeted_at_ + options_.silence;
  for (const auto& [id, call] : pending_) {
    next_expiry_ = std::min({next_expiry_, call.spec.deadline, window_end(call)});
  }
}

// ---------------------------------------------------------------- connection

void CallerSession::MaybeDial(absl::Time now, Actions& actions) {
  if (state_ != State::kDown || !Dialable() || now < next_dial_) return;
  if (pending_.empty() && epoch_ == 0) return;
  state_ = State::kDialing;
  actions.push_back(DialAction{peer_.name, address_});
}

void CallerSession::Backoff(absl::Time now) {
  next_dial_ = now;
  if (backoff_ > absl::ZeroDuration()) {
    double part = 0.5 + 0.5 * static_cast<double>(NextRandom(jitter_) >> 11) / (1ull << 53);
    next_dial_ += backoff_ * part;
  }
  backoff_ = std::min(options_.reconnect_max, std::max(options_.reconnect_min, backoff_ * 2));
}

void CallerSession::GoDown(absl::Time now) {
  if (state_ == State::kOpen) lost_at_ = now;
  state_ = State::kDown;
  peer_leaving_ = false;
  link_ = 0;
  Backoff(now);
  // The retry window of each pending call begins now.
  next_expiry_ = std::min(next_expiry_, now);
}

void CallerSession::OnLink(absl::Time now, LinkId link, Actions& actions) {
  link_ = link;
  Greet(now, actions);
}

void CallerSession::Greet(absl::Time now, Actions& actions) {
  if (state_ == State::kOpen) lost_at_ = now;
  state_ = State::kGreeting;
  peer_leaving_ = false;
  greeted_at_ = now;
  // The retry window of each pending call begins now, and the wait for the welcome has a bound.
  next_expiry_ = std::min({next_expiry_, now + options_.retry_window, now + options_.silence});
  Header header;
  header.kind = MessageKind::kHello;
  header.name = self_.name;
  header.incarnation = self_.incarnation;
  header.protocol_version = kProtocolVersion;
  header.epoch = epoch_;
  header.callee_incarnation = peer_.incarnation;
  hello_number_ = FaultOn("greetings_numbered_for_each_peer") ? hello_number_ + 1 : ++hellos_;
  header.sequence = hello_number_;
  header.ack = settled_.ToAck();
  SendControl(link_, std::move(header), actions);
}

void CallerSession::OnDialFailed(absl::Time now, bool refused, const absl::Status& status,
                                 Actions& actions) {
  if (state_ != State::kDialing) return;  // the peer called us meanwhile
  unreachable_ = true;
  trouble_ = std::string(status.message());
  if (backoff_ == absl::ZeroDuration()) backoff_ = options_.reconnect_min;
  GoDown(now);
  if (!refused) return;
  FailWhere(
      [](const Pending& call) { return !call.spec.wait_for_ready; },
      WithRemedy(absl::UnavailableError(absl::StrCat("nobody listens for ", peer_.name, " at ",
                                                     address_, " (", status.message(), ")")),
                 "start it, or let the call wait for it"),
      actions);
}

void CallerSession::OnLinkClosed(absl::Time now, LinkId link, Actions& actions) {
  if (link_ != link || link == 0) return;
  // Reconnect at once, unless the link ended as soon as it was opened.
  if (state_ == State::kOpen && now - opened_at_ >= options_.reconnect_min) {
    backoff_ = absl::ZeroDuration();
  }
  GoDown(now);
  GiveUpIfGone(actions);
  MaybeDial(now, actions);
}

void CallerSession::OnWelcome(absl::Time now, LinkId link, const Header& welcome,
                              Actions& actions) {
  if (link != link_ || state_ != State::kGreeting || welcome.sequence != hello_number_) return;
  if (welcome.name != peer_.name) return OnWrongName(now, welcome.name, actions);
  expected_back_ = true;
  leaving_ = false;
  unreachable_ = false;
  trouble_.clear();
  if (peer_.incarnation != 0 && peer_.incarnation != welcome.incarnation) {
    OnRestarted(welcome.incarnation, actions);
  } else if (epoch_ != 0 && (!welcome.resumed || welcome.epoch != epoch_)) {
    OnEnded(absl::OkStatus(), actions);
  }
  peer_.incarnation = welcome.incarnation;
  epoch_ = welcome.epoch;
  talk_every_ = TalkEvery(options_.silence, welcome.timeout_us);
  state_ = State::kOpen;
  opened_at_ = now;
  FailOtherIncarnations(actions);
  SendCancels(actions);
  SendPending(actions);
  // Answers may have come over an older link before the welcome on this one.
  AnnounceIfDue(actions);
}

void CallerSession::OnWrongName(absl::Time now, const std::string& name, Actions& actions) {
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "worker ", name, " answers at ", address_, ", where ", peer_.name, " was expected"));
  status = WithRemedy(status, "correct the address");
  actions.push_back(CloseLinkAction{link_, status});
  GoDown(now);
  CompleteAll(status, actions);
}

void CallerSession::FailOtherIncarnations(Actions& actions) {
  std::vector<CallId> others;
  for (const auto& [id, call] : pending_) {
    Incarnation only = call.spec.only_incarnation;
    if (only != 0 && only != peer_.incarnation) others.push_back(id);
  }
  std::sort(others.begin(), others.end());
  for (CallId id : others) {
    auto call = pending_.find(id);
    absl::Status status = WrongIncarnation(call->second.spec.only_incarnation, peer_.incarnation);
    Fail(call, std::move(status), actions);
  }
}

// Sends all unanswered cancels again; they may have been lost with the former link.
void CallerSession::SendCancels(Actions& actions) {
  std::vector<std::pair<CallId, uint64_t>> calls(given_up_.begin(), given_up_.end());
  std::sort(calls.begin(), calls.end());
  for (const auto& [id, sequence] : calls) SendCancel(id, sequence, actions);
}

void CallerSession::SendPending(Actions& actions) {
  std::vector<CallId> ids;
  for (const auto& [id, call] : pending_) {
    if (!call.waits_for_window) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  // Calls with a sequence number go first. The others queue behind those that wait for the window.
  DrainWindow(actions);
  for (CallId id : ids) {
    auto call = pending_.find(id);
    if (call->second.spec.connect_only) {
      Fail(call, absl::OkStatus(), actions);
    } else {
      SendOrWait(id, call->second, actions);
    }
  }
  DrainWindow(actions);  // a message that was sent may have announced answers
}

void CallerSession::OnRefused(absl::Time now, LinkId link, const Header& refused,
                              bool peer_uses_link, Actions& actions) {
  if (link != link_ || state_ != State::kGreeting || refused.sequence != hello_number_) return;
  const absl::Status& status = refused.status;
  // A peer that has no place for this worker may call it all the same.
  if (!peer_uses_link || !absl::IsResourceExhausted(status))
    actions.push_back(CloseLinkAction{link, status});
  if (backoff_ == absl::ZeroDuration()) backoff_ = options_.reconnect_min;
  GoDown(now);
  trouble_ = absl::StrCat("it does not let ", self_.name, " in: ", status.message());
  if (absl::IsUnavailable(status)) return;
  absl::Status reason = Annotate(status, absl::StrCat(peer_.name, " refuses ", self_.name));
  LoseSession(
      reason, reason, [](const Pending&) { return true; }, actions);
}

// ---------------------------------------------------------------- time

void CallerSession::Tick(absl::Time now, Actions& actions) {
  if (state_ == State::kGreeting && now - greeted_at_ >= options_.silence) {
    trouble_ =
        absl::StrCat("no answer to the greeting within ", absl::FormatDuration(options_.silence));
    actions.push_back(CloseLinkAction{
        link_, absl::UnavailableError(absl::StrCat(peer_.name, " gives ", trouble_))});
    GoDown(now);
  }
  FailExpired(now, actions);
  MaybeDial(now, actions);
}

absl::Time CallerSession::NextWake() const {
  bool dials = state_ == State::kDown && Dialable() && (!pending_.empty() || epoch_ != 0);
  return dials ? std::min(next_expiry_, next_dial_) : next_expiry_;
}

}  // namespace psd::rpc
