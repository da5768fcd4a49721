#pragma once

// The groups of this worker, and the messages of their other ranks.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/services/collectives/collective_group.h"
#include "core/services/collectives/ended_groups.h"

namespace psd::v1 {
class CollectiveEnd;
class CollectiveEnter;
class CollectivePiece;
class CollectiveTake;
class CollectiveWatch;
}  // namespace psd::v1

namespace psd::services {

// Serves the "collective.*" methods. Thread-safe.
class CollectiveService {
 public:
  // Registers the methods. The agent must not have started.
  explicit CollectiveService(CollectiveGroup::Uses uses);

  // Makes this worker's part in a group. The messages of the other ranks are served from now on, so
  // all ranks must have made theirs before one of them watches or starts a call. They are refused
  // once the group is destroyed, unless it is one of the last that have failed or were left
  // (EndedGroups): then the others are still told so.
  // Errors: FAILED_PRECONDITION after Close. Requires: at least two members.
  absl::StatusOr<std::shared_ptr<CollectiveGroup>> Make(GroupMembers members) PSD_EXCLUDES(mutex_);
  // Closes all groups, before the parts of the worker that they use stop. Before that it waits at
  // most `limit` until the other ranks have got what was sent to them. May be repeated.
  void Close(absl::Duration limit) PSD_EXCLUDES(mutex_);

 private:
  using GroupPtr = std::shared_ptr<CollectiveGroup>;  // shared with the user's handle
  std::vector<GroupPtr> Groups() PSD_EXCLUDES(mutex_);
  // Returns the group of a message and the rank of its sender.
  // Errors: FAILED_PRECONDITION if this worker is in no such generation of a group;
  // PERMISSION_DENIED if the sender is none of its members.
  struct Sender {
    GroupPtr group;
    int rank = 0;
  };
  absl::StatusOr<Sender> Find(const rpc::ServerCall& call, uint64_t generation)
      PSD_EXCLUDES(mutex_);
  absl::Status ServeEnter(const rpc::CallPtr& call, v1::CollectiveEnter request);
  absl::Status ServePiece(const rpc::CallPtr& call, v1::CollectivePiece request);
  absl::Status ServeTake(const rpc::Answer<rpc::Contents>& answer, v1::CollectiveTake request);
  absl::Status ServeWatch(const rpc::Answer<v1::CollectiveEnd>& answer,
                          v1::CollectiveWatch request);
  void SessionEnded(const rpc::PeerInfo& peer, uint64_t epoch) PSD_EXCLUDES(mutex_);

  const CollectiveGroup::Uses uses_;
  const std::shared_ptr<EndedGroups> ended_ = std::make_shared<EndedGroups>();  // used by groups
  Mutex mutex_;                                                                 // leaf
  bool closed_ PSD_GUARDED_BY(mutex_) = false;
  // By generation. Those of destroyed groups are removed when another one is made.
  absl::flat_hash_map<uint64_t, std::weak_ptr<CollectiveGroup>> groups_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::services
