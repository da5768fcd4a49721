#include "core/store/version_set.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace psd::store {

int VersionSet::old_pinned() const {
  return static_cast<int>(
      std::count_if(old_.begin(), old_.end(), [](const Version& v) { return v.pins > 0; }));
}

VersionSet::Version* VersionSet::FindOld(uint64_t version) {
  auto found =
      std::find_if(old_.begin(), old_.end(), [&](const Version& v) { return v.number == version; });
  PSD_CHECK(found != old_.end(), "a version was let go that nobody held");
  return &*found;
}

void VersionSet::Recycle(uint64_t version) {
  Version* old = FindOld(version);
  if (old->held()) return;
  spares_.push_back(std::move(old->buffer));
  old_.erase(old);
}

int VersionSet::MissingForAcquire() const {
  if (acquired()) return 0;
  return std::max(0, 1 + (current_.pins > 0 ? 1 : 0) - Available());
}

void VersionSet::Release(FreedVersions& freed) {
  --acquirers_;
  Trim(freed);
}

void VersionSet::FreeSpares(FreedVersions& freed) {
  while (!spares_.empty() && Available() > Kept()) {
    freed.buffers.push_back(std::move(spares_.front()));
    spares_.erase(spares_.begin());
  }
}

void VersionSet::DropRetired(FreedVersions& freed) {
  const auto retired = std::stable_partition(spares_.begin(), spares_.end(), IsWritable);
  std::move(retired, spares_.end(), std::back_inserter(freed.buffers));
  spares_.erase(retired, spares_.end());
}

const VersionBuffer& VersionSet::BeginWrite() {
  PSD_CHECK(!writing_ && !spares_.empty(), "a step without a spare of its own");
  writing_ = std::move(spares_.back());
  spares_.pop_back();
  return writing_;
}

void VersionSet::Replace(VersionBuffer&& next, FreedVersions& freed) {
  std::swap(current_.buffer, next);
  if (current_.held()) {
    old_.push_back({current_.number, std::move(next), current_.pins, current_.copiers});
    current_.pins = current_.copiers = 0;
  } else {
    spares_.push_back(std::move(next));
  }
  ++current_.number;
  if (on_device_) freed.Add(std::move(written_));
  Trim(freed);
}

void VersionSet::Close(FreedVersions& freed) {
  acquirers_ = 0;
  Replace({}, freed);
}

}  // namespace psd::store
