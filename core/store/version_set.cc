#include "core/store/version_set.h"

#include <algorithm>

#include "core/base/status.h"

namespace psd::store {

int VersionSet::old_pinned() const {
  return static_cast<int>(
      std::count_if(old_.begin(), old_.end(), [](const Version& v) { return v.pins > 0; }));
}

int VersionSet::buffers() const {
  return 1 + spares() + (writing_ != nullptr ? 1 : 0) + static_cast<int>(old_.size());
}

int VersionSet::Available() const {
  const int coming_back = static_cast<int>(old_.size()) - old_pinned();
  return spares() + (writing_ != nullptr ? 1 : 0) + coming_back;
}

VersionSet::Access VersionSet::AccessForPin() const {
  if (current_.pins > 0) return Access::kPin;
  if (old_pinned() >= kMaxOldPinned) return Access::kCopy;
  return Available() < Needed(true) ? Access::kReserve : Access::kPin;
}

VersionSet::Version& VersionSet::Find(uint64_t version) {
  if (current_.number == version) return current_;
  auto found =
      std::find_if(old_.begin(), old_.end(), [&](const Version& v) { return v.number == version; });
  PSD_CHECK(found != old_.end(), "a version was let go that nobody held");
  return *found;
}

VersionSet::Blocks VersionSet::Settle(uint64_t version) {
  if (version != current_.number) {
    auto found = std::find_if(old_.begin(), old_.end(),
                              [&](const Version& v) { return v.number == version; });
    if (found->pins == 0 && found->copiers == 0) {
      spares_.push_back(std::move(found->block));
      old_.erase(found);
    }
  }
  return Trim();
}

VersionSet::Blocks VersionSet::DropPin(uint64_t version) {
  --Find(version).pins;
  return Settle(version);
}

VersionSet::Blocks VersionSet::DropCopier(uint64_t version) {
  --Find(version).copiers;
  return Settle(version);
}

int VersionSet::MissingForAcquire() const {
  if (acquired()) return 0;
  return std::max(0, 1 + (current_.pins > 0 ? 1 : 0) - Available());
}

VersionSet::Blocks VersionSet::Release() {
  --acquirers_;
  return Trim();
}

int VersionSet::Kept() const {
  return Needed(current_.pins > 0 || current_.block->size() <= kSmallBufferBytes);
}

VersionSet::Blocks VersionSet::Trim() {
  Blocks freed;
  while (!spares_.empty() && Available() > Kept()) {
    freed.push_back(std::move(spares_.front()));
    spares_.erase(spares_.begin());
  }
  return freed;
}

const VersionSet::BlockPtr& VersionSet::BeginWrite() {
  PSD_CHECK(writing_ == nullptr && !spares_.empty(), "a step without a spare of its own");
  writing_ = std::move(spares_.back());
  spares_.pop_back();
  return writing_;
}

void VersionSet::AbandonWrite() {
  spares_.push_back(std::exchange(writing_, nullptr));
}

VersionSet::Blocks VersionSet::Replace(BlockPtr next) {
  Version next_version;
  next_version.number = current_.number + 1;
  next_version.block = std::move(next);
  const uint64_t replaced = current_.number;
  old_.push_back(std::exchange(current_, std::move(next_version)));
  pin.reset();
  return Settle(replaced);
}

}  // namespace psd::store
