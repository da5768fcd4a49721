#pragma once

// A queue of events, ordered by their times; events with equal times keep the order of their
// addition.

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "core/base/executor.h"

namespace psd::carrier {

struct NetworkEvent {
  const void* target = nullptr;  // the node whose handlers the task may call
  Task task;
};

// Thread-compatible.
class EventQueue {
 public:
  using Key = std::pair<absl::Time, uint64_t>;

  Key Add(absl::Time due, const void* target, Task task) {
    Key key{due, next_++};
    events_.emplace(key, NetworkEvent{target, std::move(task)});
    return key;
  }

  // Removes an event and returns it, so that the caller can destroy it outside of a lock.
  NetworkEvent Remove(const Key& key) {
    auto found = events_.find(key);
    if (found == events_.end()) return {};
    NetworkEvent event = std::move(found->second);
    events_.erase(found);
    return event;
  }

  std::optional<absl::Time> NextDue() const {
    if (events_.empty()) return std::nullopt;
    return events_.begin()->first.first;
  }

  // Requires: the queue is not empty.
  NetworkEvent TakeFirst() { return Remove(events_.begin()->first); }

 private:
  uint64_t next_ = 0;
  std::map<Key, NetworkEvent> events_;
};

}  // namespace psd::carrier
