#include "core/base/result_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace psd {
namespace {

// The allocators of all scopes, the newest last, behind one of ordinary memory.
struct Sources {
  Mutex mutex;  // leaf
  std::vector<std::shared_ptr<Allocator>> allocators PSD_GUARDED_BY(mutex);

  Sources() {
    HeapAllocatorOptions heap;
    heap.cache_bytes = kKeptResultBytes;
    allocators.push_back(NewHeapAllocator(heap));
  }
};

Sources& TheSources() {
  static Sources& sources = *new Sources();  // never destroyed: tensors may be made until the end
  return sources;
}

}  // namespace

std::shared_ptr<Allocator> ResultMemory() {
  Sources& sources = TheSources();
  MutexLock lock(sources.mutex);
  return sources.allocators.back();
}

ResultMemoryScope::ResultMemoryScope(std::shared_ptr<Allocator> allocator)
    : allocator_(std::move(allocator)) {
  Sources& sources = TheSources();
  MutexLock lock(sources.mutex);
  sources.allocators.push_back(allocator_);
}

ResultMemoryScope::~ResultMemoryScope() {
  Sources& sources = TheSources();
  MutexLock lock(sources.mutex);
  auto& all = sources.allocators;
  all.erase(std::find(all.begin() + 1, all.end(), allocator_));
}

}  // namespace psd
