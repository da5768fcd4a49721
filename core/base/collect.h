#pragma once

// Combines several futures into one.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/mutex.h"

namespace psd {

// Returns a future with the values of all `futures`, in their order. It fails with the first error
// that arrives, without waiting for the other futures, and is ready at once if `futures` is empty.
// Its callbacks run on the executor of the first future.
template <typename T>
Future<std::vector<T>> CollectAll(const std::vector<Future<T>>& futures) {
  struct Gather {
    Mutex mutex;  // leaf
    std::vector<T> values PSD_GUARDED_BY(mutex);
    size_t missing PSD_GUARDED_BY(mutex) = 0;
  };
  if (futures.empty()) return Future<std::vector<T>>::Ready(std::vector<T>{});
  auto gather = std::make_shared<Gather>();
  {
    MutexLock lock(gather->mutex);
    gather->values.resize(futures.size());
    gather->missing = futures.size();
  }
  Promise<std::vector<T>> promise;
  for (size_t i = 0; i < futures.size(); ++i) {
    // The callback is short, so it may run on the thread that sets the value.
    futures[i].On(nullptr).OnReady([gather, promise, i](const absl::StatusOr<T>& result) {
      if (!result.ok()) return static_cast<void>(promise.Set(result.status()));
      std::vector<T> all;
      {
        MutexLock lock(gather->mutex);
        gather->values[i] = *result;
        if (--gather->missing > 0) return;
        all = std::move(gather->values);
      }
      promise.Set(std::move(all));
    });
  }
  return promise.future().On(futures.front().executor());
}

// Blocks until all values are there and returns them in order; returns the first error as soon as
// it arrives.
template <typename T>
absl::StatusOr<std::vector<T>> WaitAll(const std::vector<Future<T>>& futures) {
  return CollectAll(futures).Wait();
}

}  // namespace psd
