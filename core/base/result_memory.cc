#include "core/base/result_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace psd {
namespace {

struct Source {
  const ResultMemoryScope* scope;  // null for the first, of ordinary memory
  std::shared_ptr<Allocator> allocator;
};

// The source of each scope, the newest last.
struct Sources {
  Mutex mutex;  // leaf
  std::vector<Source> all PSD_GUARDED_BY(mutex);

  Sources() {
    HeapAllocatorOptions heap;
    heap.cache_bytes = kKeptResultBytes;
    all.push_back({nullptr, NewHeapAllocator(heap)});
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
  return sources.all.back().allocator;
}

ResultMemoryScope::ResultMemoryScope(std::shared_ptr<Allocator> allocator) {
  Sources& sources = TheSources();
  MutexLock lock(sources.mutex);
  sources.all.push_back({this, std::move(allocator)});
}

ResultMemoryScope::~ResultMemoryScope() {
  Sources& sources = TheSources();
  Source ended;  // freed after the lock
  MutexLock lock(sources.mutex);
  const auto mine = std::find_if(sources.all.begin(), sources.all.end(),
                                 [this](const Source& each) { return each.scope == this; });
  ended = std::move(*mine);
  sources.all.erase(mine);
}

}  // namespace psd
