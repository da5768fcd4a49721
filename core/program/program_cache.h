#pragma once

// Programs that were checked before, by fingerprint: a caller sends the text of a program once.

#include <cstddef>
#include <list>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "core/program/program.h"

namespace psd::program {

// Thread-safe. Keeps the most recently used; a program that was forgotten is sent again.
class ProgramCache {
 public:
  static constexpr size_t kDefaultMaxBytes = size_t{64} << 20;

  // At most so many programs, and of so many bytes (their canonical encoding) together.
  explicit ProgramCache(size_t max_entries, size_t max_bytes = kDefaultMaxBytes)
      : max_entries_(max_entries), max_bytes_(max_bytes) {}

  // Null if it is not (or no longer) known.
  std::shared_ptr<const CheckedProgram> Find(const Fingerprint& fingerprint) PSD_EXCLUDES(mutex_);

  // Returns the one that is kept, which may be an equal one that was there before; one that is too
  // large is returned but not kept.
  std::shared_ptr<const CheckedProgram> Insert(CheckedProgram program) PSD_EXCLUDES(mutex_);

  size_t size() const PSD_EXCLUDES(mutex_);

 private:
  struct Entry {
    Fingerprint fingerprint;
    std::shared_ptr<const CheckedProgram> program;  // shared with calls that run it
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  const size_t max_entries_;
  const size_t max_bytes_;
  mutable Mutex mutex_;                     // leaf
  Entries entries_ PSD_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<Fingerprint, Entries::iterator> index_ PSD_GUARDED_BY(mutex_);
  size_t bytes_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::program
