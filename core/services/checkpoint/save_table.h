#pragma once

// The saves whose files an owner writes for its peers' sessions.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/services/checkpoint/own_save.h"

namespace psd::services {

// A place is reserved before the files of a save are made, so that there are never too many. While
// the files are being made, a peer may give the save up and open another one under its id.
// Therefore a place belongs to one opening, and only that opening can fill it. Thread-safe. Never
// destroys a save.
class SaveTable {
 public:
  // The bound for all sessions together. Each save has a thread, and so has each of its files.
  static constexpr size_t kMaxSaves = 4;

  using Key = std::pair<GlobalId, GlobalId>;  // a session, and the save's id there
  using SavePtr = std::shared_ptr<OwnSave>;   // shared with the calls that write to it

  // Reserves the place of `key`, and returns the number of the opening that owns it.
  // Errors: RESOURCE_EXHAUSTED beyond kMaxSaves; ALREADY_EXISTS.
  absl::StatusOr<uint64_t> Reserve(const Key& key) PSD_EXCLUDES(mutex_);
  // Puts `save` into the place of its opening. Returns false if the opening has lost its place;
  // then the caller destroys `save`.
  bool Fill(const Key& key, uint64_t opening, const SavePtr& save) PSD_EXCLUDES(mutex_);

  // Errors: NOT_FOUND, also while the files of the save are being made.
  absl::StatusOr<SavePtr> Find(const Key& key) const PSD_EXCLUDES(mutex_);
  // Frees the place, and returns the save that was in it; null if the place was not filled yet.
  SavePtr Take(const Key& key) PSD_EXCLUDES(mutex_);
  // As above, if the place belongs to `opening`. Otherwise it stays as it is, and null is returned.
  SavePtr Take(const Key& key, uint64_t opening) PSD_EXCLUDES(mutex_);
  std::vector<SavePtr> TakeAllOf(GlobalId session) PSD_EXCLUDES(mutex_);

 private:
  struct Place {
    uint64_t opening = 0;
    SavePtr save;  // null until the opening fills it
  };
  mutable Mutex mutex_;  // leaf
  std::map<Key, Place> places_ PSD_GUARDED_BY(mutex_);
  uint64_t openings_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::services
