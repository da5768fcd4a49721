#include "core/rpc/callee_session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/faults.h"

namespace psd::rpc {

CalleeSession::CalleeSession(const SessionOptions& options, PeerInfo caller, uint64_t epoch,
                             std::string origin, absl::Time now)
    : options_(options),
      caller_(std::move(caller)),
      epoch_(epoch),
      origin_(std::move(origin)),
      last_heard_(now),
      lease_until_(now + options.lease) {}

void CalleeSession::OnHeard(absl::Time now) {
  last_heard_ = now;
  leniency_.Restore();
  lease_until_ = std::max(lease_until_, now + options_.lease);
}

RequestVerdict CalleeSession::OnRequest(LinkId link, const RequestMeta& meta,
                                        std::shared_ptr<Opaque> work, Actions& actions) {
  if (!OnAck(meta.ack, actions)) return RequestVerdict::kViolation;
  bool running = running_.contains(meta.call_id);
  if (meta.sequence != 0) {
    if (acknowledged_.Contains(meta.sequence) && !FaultOn("acknowledged_runs_again"))
      return RequestVerdict::kStale;
    if (FaultOn("repeated_request_runs_again")) records_.erase(meta.sequence);
    auto record = records_.find(meta.sequence);
    if (record != records_.end()) {
      if (record->second.call_id != meta.call_id) return RequestVerdict::kViolation;
      if (record->second.answer == nullptr) return RequestVerdict::kRunning;
      actions.push_back(SendAnswerAction{link, meta.call_id, record->second.answer});
      return RequestVerdict::kReplayed;
    }
    // A caller that keeps the protocol stops at max_unacknowledged_answers. Copies in flight may
    // exceed the bound for a moment, but not by this much.
    if (running || records_.size() >= 4 * options_.max_unacknowledged_answers) {
      return RequestVerdict::kViolation;
    }
    records_.emplace(meta.sequence, Record{meta.call_id, nullptr, 0});
    ++mutations_running_;
  } else if (running) {
    return RequestVerdict::kRunning;
  } else if (running_.size() - mutations_running_ >= options_.max_running_reads) {
    return RequestVerdict::kTooMany;
  }
  running_.emplace(meta.call_id,
                   Running{meta.sequence, meta.deadline, std::move(work), false, false, false});
  next_deadline_ = std::min(next_deadline_, meta.deadline);
  return RequestVerdict::kRun;
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

LinkId CalleeSession::OnReply(CallId call_id, std::shared_ptr<Opaque> answer, size_t bytes,
                              Actions& actions) {
  auto found = running_.find(call_id);
  if (found == running_.end()) return 0;
  Running running = std::move(found->second);
  running_.erase(found);
  if (running.sequence != 0) {
    auto record = records_.find(running.sequence);
    if (record == records_.end()) {  // cancelled by its caller, who has moved on
      actions.push_back(AnswerDroppedAction{std::move(answer)});
      return 0;
    }
    record->second.answer = std::move(answer);
    record->second.bytes = bytes;
    remembered_bytes_ += bytes;
    --mutations_running_;
  } else if (running.given_up || link_ == 0) {  // nobody takes it, and it is not remembered
    actions.push_back(AnswerDroppedAction{std::move(answer)});
    return 0;
  }
  return link_;
}

void CalleeSession::OnAnswerRefused(uint64_t sequence, const std::shared_ptr<Opaque>& answer,
                                    std::shared_ptr<Opaque> error, size_t bytes, Actions& actions) {
  if (sequence != 0) {
    auto record = records_.find(sequence);
    // Given up meanwhile, or refused on another link too.
    if (record == records_.end() || record->second.answer != answer) return;
    remembered_bytes_ = remembered_bytes_ - record->second.bytes + bytes;
    record->second.answer = std::move(error);
    record->second.bytes = bytes;
  }
  actions.push_back(AnswerDroppedAction{answer});
}

bool CalleeSession::OnCancel(CallId call_id, uint64_t sequence, Actions& actions) {
  auto record = records_.find(sequence);
  if (record != records_.end() && record->second.answer != nullptr) {
    actions.push_back(AnswerDroppedAction{record->second.answer});
  }
  // An acknowledged sequence number makes copies of the request that are still under way stale.
  if (sequence != 0) Acknowledge(sequence, sequence, actions);
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
  return acknowledged_.ranges().size() <= 4 * options_.max_unacknowledged_answers;
}

void CalleeSession::Acknowledge(uint64_t first, uint64_t last, Actions& actions) {
  acknowledged_.Add(first, last);
  auto record = records_.lower_bound(first);
  while (record != records_.end() && record->first <= last) {
    if (record->second.answer == nullptr) {
      --mutations_running_;
      auto running = running_.find(record->second.call_id);
      if (running != running_.end()) CancelRunning(running->second, actions);
    }
    remembered_bytes_ -= record->second.bytes;
    record = records_.erase(record);
  }
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
    if (running == running_.end() || running->second.applying) in_doubt.Add(sequence);
  }
  return in_doubt.ToAck();
}

void CalleeSession::End(Actions& actions) {
  if (FaultOn("work_outlives_its_session")) return;
  CancelWhere([](const Running&) { return true; }, actions);
}

}  // namespace psd::rpc
