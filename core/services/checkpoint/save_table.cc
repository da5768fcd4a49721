#include "core/services/checkpoint/save_table.h"
#include "core/base/remedy.h"

#include "absl/strings/str_cat.h"

namespace psd::services {

absl::StatusOr<uint64_t> SaveTable::Reserve(const Key& key) {
  MutexLock lock(mutex_);
  if (places_.size() >= kMaxSaves) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it writes the files of ", places_.size(), " saves already"));
  }
  if (!places_.emplace(key, Place{openings_ + 1, nullptr}).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("it writes save ", key.second.counter, " already"));
  }
  return ++openings_;
}

bool SaveTable::Fill(const Key& key, uint64_t opening, const SavePtr& save) {
  MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end() || found->second.opening != opening) return false;
  found->second.save = save;
  return true;
}

absl::StatusOr<SaveTable::SavePtr> SaveTable::Find(const Key& key) const {
  MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found != places_.end() && found->second.save != nullptr) return found->second.save;
  return WithRemedy(absl::NotFoundError(absl::StrCat("no save ", key.second.counter,
                                                     " of this session is written here")),
                    "its session may have ended: start again");
}

SaveTable::SavePtr SaveTable::Take(const Key& key) {
  MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return nullptr;
  SavePtr save = std::move(found->second.save);
  places_.erase(found);
  return save;
}

SaveTable::SavePtr SaveTable::Take(const Key& key, uint64_t opening) {
  MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end() || found->second.opening != opening) return nullptr;
  SavePtr save = std::move(found->second.save);
  places_.erase(found);
  return save;
}

std::vector<SaveTable::SavePtr> SaveTable::TakeAllOf(GlobalId session) {
  std::vector<SavePtr> saves;
  MutexLock lock(mutex_);
  auto next = places_.lower_bound({session, {}});
  while (next != places_.end() && next->first.first == session) {
    if (next->second.save != nullptr) saves.push_back(std::move(next->second.save));
    next = places_.erase(next);
  }
  return saves;
}

}  // namespace psd::services
