#include "core/rpc/callee_session.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/faults.h"

namespace psd::rpc {

CalleeSession::CalleeSession(const SessionOptions& options, PeerInfo caller, uint64_t epoch,
                             std::string origin, absl::Time now, MemoryCharge charge,
                             size_t own_calls)
    : options_(options),
      caller_(std::move(caller)),
      epoch_(epoch),
      origin_(std::move(origin)),
      last_heard_(now),
      lease_until_(now + options.lease),
      charge_(std::move(charge)),
      held_calls_(own_calls * kCallBytes, own_calls * kCallBytes) {}

void CalleeSession::OnHeard(absl::Time now) {
  last_heard_ = now;
  leniency_.Restore();
  lease_until_ = std::max(lease_until_, now + options_.lease);
}

RequestVerdict CalleeSession::OnRequest(LinkId link, const RequestMeta& meta,
                                        std::shared_ptr<Opaque> work, Actions& actions) {
  if (!OnAck(meta.ack, actions)) return RequestVerdict::kViolation;
  if (meta.sequence != 0) {
    const bool running = running_.contains(meta.call_id);
    if (acknowledged_.Contains(meta.sequence) && !FaultOn("acknowledged_runs_again"))
      return RequestVerdict::kStale;
    if (FaultOn("repeated_request_runs_again")) records_.erase(meta.sequence);
    auto record = records_.find(meta.sequence);
    if (record != records_.end()) {
      const Record& known = record->second;
      const bool compared = known.fingerprint != 0 && meta.fingerprint != 0;
      if (known.call_id != meta.call_id || (compared && known.fingerprint != meta.fingerprint))
        return RequestVerdict::kOther;
      if (record->second.answer == nullptr) return RequestVerdict::kRunning;
      actions.push_back(SendAnswerAction{link, meta.call_id, record->second.answer});
      return RequestVerdict::kReplayed;
    }
    if (refused_.Contains(meta.sequence)) return RequestVerdict::kNoMemory;
    // A caller that keeps the protocol stops at max_unacknowledged_answers. Copies in flight may
    // exceed the bound for a moment, but not by this much.
    if (running || records_.size() >= 4 * options_.max_unacknowledged_answers) {
      return RequestVerdict::kViolation;
    }
    if (!HoldCall()) {
      refused_.Add(meta.sequence);
      last_refused_ = std::max(last_refused_, meta.sequence);
      return WithinBounds() ? RequestVerdict::kNoMemory : RequestVerdict::kViolation;
    }
    records_.emplace(meta.sequence, Record{meta.call_id, meta.fingerprint, nullptr, 0, false});
    ++mutations_running_;
  } else if (RequestVerdict verdict = OnRead(meta, actions); verdict != RequestVerdict::kRun) {
    return verdict;
  }
  running_.emplace(meta.call_id, Running{meta.sequence, meta.deadline, std::move(work), false,
                                         false, false, meta.attempt});
  next_deadline_ = std::min(next_deadline_, meta.deadline);
  return RequestVerdict::kRun;
}

RequestVerdict CalleeSession::OnRead(const RequestMeta& meta, Actions& actions) {
  if (meta.call_id < lowest_open_) return RequestVerdict::kStale;
  if (auto running = running_.find(meta.call_id); running != running_.end()) {
    running->second.attempt = std::max(running->second.attempt, meta.attempt);
    return RequestVerdict::kRunning;
  }
  if (auto record = reads_.find(meta.call_id); record != reads_.end()) {
    if (meta.attempt <= record->second.attempt) return RequestVerdict::kStale;
    // The caller has sent the read again, so it does not take the answer to an earlier attempt.
    if (record->second.answer != nullptr)
      actions.push_back(AnswerDroppedAction{std::move(record->second.answer)});
    reads_.erase(record);
    ReleaseCalls(1);
  }
  if (running_.size() - mutations_running_ >= options_.max_running_reads)
    return RequestVerdict::kTooMany;
  return HoldCall() ? RequestVerdict::kRun : RequestVerdict::kNoMemory;
}

// If the caller leaves very many reads open, or there is no memory, some are forgotten. If the
// answer of such a read is lost, what it gave stays until the session ends, or as long as its layer
// keeps it for the caller's process.
void CalleeSession::RememberRead(CallId call_id, ReadRecord read) {
  if (call_id < lowest_open_) return;
  const auto [record, is_new] = reads_.try_emplace(call_id);
  record->second = std::move(read);
  if (!is_new) return;
  if (!HoldCall()) {
    reads_.erase(record);
  } else if (reads_.size() > kMaxRememberedReads) {
    reads_.erase(reads_.begin());
    ReleaseCalls(1);
  }
}

void CalleeSession::OnCallsOver(CallId lowest_open) {
  lowest_open_ = std::max(lowest_open_, lowest_open);
  const size_t before = reads_.size();
  reads_.erase(reads_.begin(), reads_.lower_bound(lowest_open_));
  ReleaseCalls(before - reads_.size());
}

bool CalleeSession::HoldCall() {
  if (charge_ == nullptr) return true;
  absl::Status held = held_calls_.Add(*options_.memory, kCallBytes);
  if (held.ok()) return true;
  refusal_ = std::move(held);  // copies of refused mutations get it later, so success leaves it
  return false;
}

absl::Status CalleeSession::CheckRoom() {
  if (!HoldCall()) return refusal_;
  ReleaseCalls(1);
  return absl::OkStatus();
}

void CalleeSession::ReleaseCalls(size_t calls) {
  if (charge_ != nullptr) held_calls_.Subtract(calls * kCallBytes);
}

bool CalleeSession::BeginRun(CallId call_id) {
  auto running = running_.find(call_id);
  return running != running_.end() && !running->second.cancelled;
}

bool CalleeSession::BeginApply(CallId call_id) {
  auto running = running_.find(call_id);
  if (running == running_.end() || running->second.cancelled) return false;
  running->second.applying = true;
  return true;
}

AnswerRoute CalleeSession::OnReply(CallId call_id, std::shared_ptr<Opaque> answer, size_t bytes,
                                   bool gives, Actions& actions) {
  auto found = running_.find(call_id);
  if (found == running_.end()) return {};
  Running running = std::move(found->second);
  running_.erase(found);
  if (running.sequence != 0) {
    auto record = records_.find(running.sequence);
    if (record == records_.end()) {  // cancelled by its caller, who has moved on
      ReleaseCalls(1);
      actions.push_back(AnswerDroppedAction{std::move(answer)});
      return {};
    }
    record->second.answer = std::move(answer);
    record->second.bytes = bytes;
    record->second.applied = running.applying;
    remembered_bytes_ += bytes;
    --mutations_running_;
    return {link_, 0};
  }
  ReleaseCalls(1);
  if (running.given_up || link_ == 0 || call_id < lowest_open_) {  // nobody takes the answer
    actions.push_back(AnswerDroppedAction{std::move(answer)});
    return {};
  }
  if (gives) {
    RememberRead(call_id, {std::move(answer), running.attempt});
    return {link_, running.attempt};
  }
  if (running.attempt > 1)  // an earlier copy may still come, over an older link
    RememberRead(call_id, {nullptr, running.attempt});
  return {link_, 0};
}

void CalleeSession::OnAnswerRefused(CallId call_id, const std::shared_ptr<Opaque>& answer,
                                    Actions& actions) {
  auto record = reads_.find(call_id);
  // The answer gave nothing, or was dropped meanwhile.
  if (record == reads_.end() || record->second.answer != answer) return;
  record->second.answer = nullptr;
  actions.push_back(AnswerDroppedAction{answer});
}

bool CalleeSession::OnCancel(CallId call_id, uint64_t sequence, Actions& actions) {
  auto record = records_.find(sequence);
  if (record != records_.end() && record->second.answer != nullptr) {
    actions.push_back(AnswerDroppedAction{record->second.answer});
  }
  if (sequence != 0) {
    // An acknowledged sequence number makes copies of the request that are still under way stale.
    Acknowledge(sequence, sequence, actions);
  } else {
    auto read = reads_.find(call_id);
    if (read != reads_.end() && read->second.answer != nullptr)
      actions.push_back(AnswerDroppedAction{std::move(read->second.answer)});
    RememberRead(call_id, {nullptr, std::numeric_limits<uint32_t>::max()});
  }
  auto running = running_.find(call_id);
  if (running != running_.end()) {
    running->second.given_up = true;
    CancelRunning(running->second, actions);
  }
  return WithinBounds();
}

bool CalleeSession::OnAck(const Ack& ack, Actions& actions) {
  if (ack.watermark > acknowledged_.watermark()) Acknowledge(1, ack.watermark, actions);
  for (size_t i = 0; i + 1 < ack.ranges.size(); i += 2) {
    Acknowledge(ack.ranges[i], ack.ranges[i + 1], actions);
  }
  return WithinBounds();
}

// Gaps between ranges are calls that wait for their answer, or for the answer to their cancel. A
// caller that keeps the protocol has a bounded number of them.
bool CalleeSession::WithinBounds() const {
  return acknowledged_.ranges().size() <= 4 * options_.max_unacknowledged_answers &&
         refused_.ranges().size() <= 4 * options_.max_unacknowledged_answers;
}

void CalleeSession::Acknowledge(uint64_t first, uint64_t last, Actions& actions) {
  acknowledged_.Add(first, last);
  // Calls that are over are added to refused_ too, so that its numbers form long ranges. A number
  // is looked up in acknowledged_ first.
  if (last_refused_ != 0) refused_.Add(first, last);
  auto record = records_.lower_bound(first);
  while (record != records_.end() && record->first <= last) {
    if (record->second.answer == nullptr) {
      --mutations_running_;  // its memory stays charged until it ends
      auto running = running_.find(record->second.call_id);
      if (running != running_.end()) CancelRunning(running->second, actions);
    } else {
      actions.push_back(AnswerTakenAction{std::move(record->second.answer)});
      remembered_bytes_ -= record->second.bytes;
      ReleaseCalls(1);
    }
    record = records_.erase(record);
  }
  if (last_refused_ == 0 || acknowledged_.watermark() < last_refused_) return;
  refused_ = SequenceSet();
  last_refused_ = 0;
}

void CalleeSession::CancelRunning(Running& running, Actions& actions) {
  if (running.cancelled || running.applying || FaultOn("cancel_forgotten")) return;
  running.cancelled = true;
  actions.push_back(CancelWorkAction{running.work});
}

template <typename Predicate>
void CalleeSession::CancelWhere(Predicate predicate, Actions& actions) {
  std::vector<CallId> ids;
  for (const auto& [id, running] : running_) {
    if (!running.cancelled && predicate(running)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (CallId id : ids) {
    Running& running = running_.at(id);
    running.cancelled = true;
    actions.push_back(CancelWorkAction{running.work});
  }
}

void CalleeSession::Tick(absl::Time now, Actions& actions) {
  if (now < next_deadline_ || FaultOn("deadline_does_not_travel")) return;
  CancelWhere([now](const Running& call) { return !call.applying && call.deadline <= now; },
              actions);
  next_deadline_ = absl::InfiniteFuture();
  for (const auto& [id, running] : running_) {
    if (running.cancelled || running.applying) continue;
    next_deadline_ = std::min(next_deadline_, running.deadline);
  }
}

Ack CalleeSession::InDoubt() const {
  SequenceSet in_doubt;
  for (const auto& [sequence, record] : records_) {
    auto running = running_.find(record.call_id);
    const bool applied = running == running_.end() ? record.applied : running->second.applying;
    if (applied) in_doubt.Add(sequence);
  }
  return in_doubt.ToAck();
}

void CalleeSession::End(Actions& actions) {
  if (FaultOn("work_outlives_its_session")) return;
  CancelWhere([](const Running&) { return true; }, actions);
}

}  // namespace psd::rpc
