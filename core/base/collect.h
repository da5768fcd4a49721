#pragma once

// Combines several futures into one.

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/mutex.h"

namespace psd {

namespace internal {

// Gathers one value for each of several futures. Thread-safe.
template <typename T>
class Gather {
 public:
  explicit Gather(size_t size) : values_(size), missing_(size) {}

  // Returns all values if this was the last one that was missing, and nullopt otherwise.
  std::optional<std::vector<T>> Put(size_t i, T value) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    values_[i] = std::move(value);
    if (--missing_ > 0) return std::nullopt;
    return std::move(values_);
  }

 private:
  Mutex mutex_;  // leaf
  std::vector<T> values_ PSD_GUARDED_BY(mutex_);
  size_t missing_ PSD_GUARDED_BY(mutex_);
};

}  // namespace internal

// Returns a future with the values of all `futures`, in their order. It fails with the first error
// that arrives, without waiting for the other futures, and is ready at once if `futures` is empty.
// Its callbacks run on the executor of the first future.
template <typename T>
Future<std::vector<T>> CollectAll(const std::vector<Future<T>>& futures) {
  if (futures.empty()) return Future<std::vector<T>>::Ready(std::vector<T>{});
  auto gather = std::make_shared<internal::Gather<T>>(futures.size());
  Promise<std::vector<T>> promise;
  for (size_t i = 0; i < futures.size(); ++i) {
    // The callback is short, so it may run on the thread that sets the value.
    futures[i].On(nullptr).OnReady([gather, promise, i](const absl::StatusOr<T>& result) {
      if (!result.ok()) return static_cast<void>(promise.Set(result.status()));
      if (auto all = gather->Put(i, *result); all.has_value()) promise.Set(*std::move(all));
    });
  }
  return promise.future().On(futures.front().executor());
}

// Returns a future with the results of all `futures`, errors included, in their order. It is ready
// when every one of them is, and never fails. Its callbacks run on the executor of the first
// future.
template <typename T>
Future<std::vector<absl::StatusOr<T>>> Settle(const std::vector<Future<T>>& futures) {
  using Results = std::vector<absl::StatusOr<T>>;
  if (futures.empty()) return Future<Results>::Ready(Results{});
  auto gather = std::make_shared<internal::Gather<absl::StatusOr<T>>>(futures.size());
  Promise<Results> promise;
  for (size_t i = 0; i < futures.size(); ++i) {
    futures[i].On(nullptr).OnReady([gather, promise, i](const absl::StatusOr<T>& result) {
      if (auto all = gather->Put(i, result); all.has_value()) promise.Set(*std::move(all));
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
