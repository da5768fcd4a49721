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

WriteClaims::ClaimId WriteClaims::Claim(std::vector<GlobalId> ids, Granted granted) {
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
    ++pending.missing;
  }
  pending.queued = true;
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
  const bool was_first = queue.first == claim;
  if (was_first) {
    queue.first = queue.rest->front();
    queue.rest->pop_front();
  } else {
    queue.rest->erase(std::find(queue.rest->begin(), queue.rest->end(), claim));
  }
  if (queue.rest->empty()) queue.rest.reset();
  if (!was_first) return;
  Pending& next = claims_.find(queue.first)->second;
  if (--next.missing == 0) grants.push_back({queue.first, std::move(next.granted)});
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
