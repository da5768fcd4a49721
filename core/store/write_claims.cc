#include "core/store/write_claims.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace psd::store {
namespace {

void SortUnique(std::vector<GlobalId>& ids) {
  const auto no_less = [](GlobalId a, GlobalId b) { return !(a < b); };
  if (std::adjacent_find(ids.begin(), ids.end(), no_less) == ids.end()) return;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

WriteClaims::ClaimId WriteClaims::Claim(std::vector<GlobalId> ids, Granted granted,
                                        const Stream* stream) {
  SortUnique(ids);
  ClaimId claim = 0;
  {
    MutexLock lock(mutex_);
    claim = next_++;
    const bool alone = claims_.empty();
    if (claims_.size() == 1 && !claims_.begin()->second.queued)
      Enqueue(claims_.begin()->first, claims_.begin()->second);
    Pending& pending = claims_[claim];
    pending.ids = std::move(ids);
    pending.stream = stream;
    if (!alone) Enqueue(claim, pending);
    if (pending.missing > 0) {
      pending.granted = std::move(granted);
      return claim;
    }
  }
  granted(claim);
  return claim;
}

void WriteClaims::Enqueue(ClaimId claim, Pending& pending) {
  for (const GlobalId& id : pending.ids) {
    Queue& queue = queues_[id];
    if (queue.first == 0) {
      queue.first = claim;
      continue;
    }
    if (queue.rest == nullptr) queue.rest = std::make_unique<std::deque<ClaimId>>();
    queue.rest->push_back(claim);
    const bool is_next = queue.together + 1 == queue.size();
    if (pending.stream != nullptr && is_next && MayJoin(queue)) {
      ++queue.together;
    } else {
      ++pending.missing;
    }
  }
  pending.queued = true;
}

bool WriteClaims::MayJoin(const Queue& queue) const {
  if (queue.together == 0) return true;
  if (queue.together == kMaxTogether) return false;
  const Pending& last = claims_.find(queue[queue.together - 1])->second;
  return last.handed_on && last.stream == claims_.find(queue[queue.together])->second.stream;
}

// One is enough: the next one could join only after this one was handed on.
void WriteClaims::LetNextJoin(Queue& queue, std::vector<Grant>& grants) {
  if (queue.together == queue.size() || !MayJoin(queue)) return;
  const ClaimId claim = queue[queue.together++];
  Pending& next = claims_.find(claim)->second;
  if (--next.missing == 0) grants.push_back({claim, std::move(next.granted)});
}

void WriteClaims::HandOn(ClaimId claim) {
  std::vector<Grant> grants;
  {
    MutexLock lock(mutex_);
    const auto found = claims_.find(claim);
    if (found == claims_.end()) return;
    Pending& pending = found->second;
    PSD_CHECK(pending.stream != nullptr, "a claim without a stream was handed on");
    pending.handed_on = true;
    if (pending.queued)
      for (const GlobalId& id : pending.ids) LetNextJoin(queues_.find(id)->second, grants);
  }
  Run(std::move(grants));
}

bool WriteClaims::Release(ClaimId claim) {
  std::vector<Grant> grants;
  Granted dropped;  // destroyed after the lock is released
  {
    MutexLock lock(mutex_);
    auto found = claims_.find(claim);
    PSD_CHECK(found != claims_.end(), "a write claim was released twice");
    Pending pending = std::move(found->second);
    claims_.erase(found);
    if (pending.queued)
      for (const GlobalId& id : pending.ids) LeaveQueue(claim, id, grants);
    if (pending.missing > 0) dropped = std::move(pending.granted);
  }
  Run(std::move(grants));
  return dropped != nullptr;
}

void WriteClaims::LeaveQueue(ClaimId claim, GlobalId id, std::vector<Grant>& grants) {
  auto found = queues_.find(id);
  Queue& queue = found->second;
  if (queue.rest == nullptr) {
    queues_.erase(found);
    return;
  }
  size_t place = 0;
  if (queue.first == claim) {
    queue.first = queue.rest->front();
    queue.rest->pop_front();
  } else {
    const auto at = std::find(queue.rest->begin(), queue.rest->end(), claim);
    place = 1 + static_cast<size_t>(at - queue.rest->begin());
    queue.rest->erase(at);
  }
  if (queue.rest->empty()) queue.rest.reset();
  if (place < queue.together) --queue.together;
  LetNextJoin(queue, grants);
}

// A granted callback usually runs a step, which ends in another Release. With a thousand waiting
// steps, direct calls would be nested a thousand deep, so the outermost call on a thread runs them
// all in turn.
void WriteClaims::Run(std::vector<Grant> grants) {
  static thread_local std::deque<Grant>* running = nullptr;
  if (running != nullptr) {
    std::move(grants.begin(), grants.end(), std::back_inserter(*running));
    return;
  }
  std::deque<Grant> queue(std::make_move_iterator(grants.begin()),
                          std::make_move_iterator(grants.end()));
  running = &queue;
  while (!queue.empty()) {
    Grant grant = std::move(queue.front());
    queue.pop_front();
    grant.granted(grant.claim);
  }
  running = nullptr;
}

}  // namespace psd::store
