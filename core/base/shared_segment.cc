#include "core/base/shared_segment.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/remedy.h"

namespace psd {
namespace {

constexpr size_t kMostMappings = 16384;

// Descriptors and mappings are limits of the process, so its segments are counted together.
std::atomic<uint64_t> last_id{0};
std::atomic<size_t> living{0};

absl::Status TooMany(size_t most) {
  return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                        "this process has ", most,
                        " segments of shared memory, which take at most a quarter of its file "
                        "descriptors (RLIMIT_NOFILE) and ",
                        kMostMappings, " mappings")),
                    "raise the limit (LimitNOFILE, ulimit -n)");
}

}  // namespace

size_t SharedSegment::MostSegments() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<rlim_t>(limit.rlim_cur / 4, kMostMappings);
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::Create(size_t bytes) {
  const size_t length = MappingLength(bytes);
  const size_t most = MostSegments();
  absl::StatusOr<SealedMemory> memory = TooMany(most);
  if (living.fetch_add(1, std::memory_order_relaxed) < most)
    memory = MakeSealedMemory("psd-segment", "a segment", length);
  if (!memory.ok()) {
    living.fetch_sub(1, std::memory_order_relaxed);
    return memory.status();
  }
  return std::shared_ptr<SharedSegment>(new SharedSegment(*std::move(memory)));
}

SharedSegment::SharedSegment(SealedMemory memory)
    : id_(last_id.fetch_add(1, std::memory_order_relaxed) + 1),
      memory_(std::move(memory)),
      place_(MemoryPlace::InSegment(*this)) {}

SharedSegment::~SharedSegment() {
  living.fetch_sub(1, std::memory_order_relaxed);
  std::vector<std::weak_ptr<SegmentWatcher>> watchers;
  {
    MutexLock lock(mutex_);
    watchers.swap(watchers_);
  }
  for (const std::weak_ptr<SegmentWatcher>& watcher : watchers) {
    if (const auto alive = watcher.lock()) alive->Gone(id_);
  }
}

void SharedSegment::Watch(std::weak_ptr<SegmentWatcher> watcher) {
  MutexLock lock(mutex_);
  watchers_.erase(
      std::remove_if(watchers_.begin(), watchers_.end(), [](const auto& w) { return w.expired(); }),
      watchers_.end());
  watchers_.push_back(std::move(watcher));
}

}  // namespace psd
