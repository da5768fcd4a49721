#include "core/carrier/shm/lending/shown_segments.h"

#include "absl/strings/str_cat.h"
#include "core/carrier/shm/lending/limits.h"

namespace psd::carrier {

bool ShownSegments::Name(const std::vector<uint64_t>& segments, std::vector<uint64_t>& fresh) {
  size_t unknown = 0;
  for (const uint64_t segment : segments) {
    const auto found = segments_.find(segment);
    if (found == segments_.end()) {
      ++unknown;
    } else if (found->second != State::kShown) {
      return false;
    }
  }
  if (segments_.size() + unknown > kMaxSegments) return false;
  for (const uint64_t segment : segments) {
    if (segments_.emplace(segment, State::kPassing).second) fresh.push_back(segment);
  }
  return true;
}

void ShownSegments::Passed(uint64_t segment) {
  segments_[segment] = State::kShown;
}

void ShownSegments::Hide(uint64_t segment) {
  segments_.erase(segment);
}

void ShownSegments::Decline(uint64_t segment) {
  const auto found = segments_.find(segment);
  if (found != segments_.end()) found->second = State::kDeclined;
}

bool ShownSegments::Gone(uint64_t segment) {
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second == State::kGone) return false;
  found->second = State::kGone;
  return true;
}

absl::Status ShownSegments::Forget(uint64_t segment) {
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second != State::kGone) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer forgets segment ", segment, ", which is not gone"));
  }
  segments_.erase(found);
  return absl::OkStatus();
}

}  // namespace psd::carrier
