#include "core/base/shared_allocator.h"

#include <unistd.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/heap_allocator.h"
#include "core/base/length_cache.h"
#include "core/base/shared_segment.h"

namespace psd {
namespace {

using SegmentCache = LengthCache<std::shared_ptr<SharedSegment>>;

class SegmentBlock : public Block {
 public:
  SegmentBlock(std::shared_ptr<SharedSegment> segment, size_t size,
               std::shared_ptr<SegmentCache> cache)
      : Block(segment->data(), size, segment->place()),
        segment_(std::move(segment)),
        cache_(std::move(cache)) {}
  ~SegmentBlock() override {
    const size_t length = segment_->bytes();
    if (!segment_->retired()) cache_->Give(length, std::move(segment_));
  }

 private:
  std::shared_ptr<SharedSegment> segment_;
  const std::shared_ptr<SegmentCache> cache_;  // shared by the allocator and its live blocks
};

class SharedAllocator : public Allocator {
 public:
  explicit SharedAllocator(const SharedAllocatorOptions& options)
      : SharedAllocator(options, std::make_shared<CacheRoom>(options.cache_bytes)) {}
  ~SharedAllocator() override { cache_->Close(); }

  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    if (bytes < options_.segment_threshold_bytes || bytes > SIZE_MAX / 2)
      return heap_->Allocate(bytes);
    // A forked child shares its parent's segments, so it must not take one that the parent has
    // kept.
    if (getpid() != process_) return heap_->Allocate(bytes);
    absl::StatusOr<std::shared_ptr<SharedSegment>> segment = SegmentOf(bytes);
    if (!segment.ok()) {
      SayRefused(segment.status());
      return heap_->Allocate(bytes);
    }
    return std::make_shared<SegmentBlock>(*std::move(segment), bytes, cache_);
  }
  void ReleaseUnused() override {
    heap_->ReleaseUnused();
    cache_->Age();
  }

 private:
  SharedAllocator(const SharedAllocatorOptions& options, const std::shared_ptr<CacheRoom>& room)
      : options_(options),
        heap_(NewHeapAllocator(HeapAllocatorOptions().map_threshold_bytes, room)),
        cache_(std::make_shared<SegmentCache>(room)) {}

  absl::StatusOr<std::shared_ptr<SharedSegment>> SegmentOf(size_t bytes) {
    if (auto kept = cache_->Take(MappingLength(bytes)); kept.has_value()) return *std::move(kept);
    absl::StatusOr<std::shared_ptr<SharedSegment>> segment = SharedSegment::Create(bytes);
    // What is kept for other lengths may be the reason.
    if (!segment.ok() && cache_->Clear()) segment = SharedSegment::Create(bytes);
    return segment;
  }

  void SayRefused(const absl::Status& why) {
    if (options_.logger == nullptr || said_.exchange(true)) return;
    options_.logger->Log(LogLevel::kWarning, "segments_refused",
                         absl::StrCat("large tensors are in ordinary memory and are copied to "
                                      "other processes of this host: ",
                                      why.message()));
  }

  const SharedAllocatorOptions options_;
  const pid_t process_ = getpid();
  const std::shared_ptr<Allocator> heap_;
  const std::shared_ptr<SegmentCache> cache_;  // shared with the live blocks
  std::atomic<bool> said_{false};
};

}  // namespace

std::shared_ptr<Allocator> NewSharedAllocator(const SharedAllocatorOptions& options) {
  return std::make_shared<SharedAllocator>(options);
}

}  // namespace psd
