#pragma once

// Keeps checked programs by fingerprint, so that a caller need not send the same program again.

#include <cstddef>
#include <list>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"

namespace psd::program {

// Keeps the most recently used programs. If one was dropped, its caller sends it again.
// Thread-safe.
class ProgramCache {
 public:
  static constexpr size_t kDefaultMaxBytes = size_t{64} << 20;

  // Keeps at most `max_entries` programs, which take at most `max_bytes` of memory in all and, if
  // `memory` is limited, at most a 64th of what it may use. Programs that are not kept are charged
  // to `memory` for as long as a call uses them. If `memory` is null, they are not charged.
  explicit ProgramCache(size_t max_entries, std::shared_ptr<MemoryAccount> memory = nullptr,
                        size_t max_bytes = kDefaultMaxBytes);

  // Returns null if the cache does not have the program.
  std::shared_ptr<const CheckedProgram> Find(const Fingerprint& fingerprint) PSD_EXCLUDES(mutex_);

  // Adds a program and returns the one that the cache keeps, which may be an equal one that was
  // there before. A program larger than `max_bytes` is returned but not kept. Errors:
  // RESOURCE_EXHAUSTED if there is no memory for it.
  absl::StatusOr<std::shared_ptr<const CheckedProgram>> Insert(CheckedProgram program)
      PSD_EXCLUDES(mutex_);

  size_t size() const PSD_EXCLUDES(mutex_);

 private:
  struct Charged {
    CheckedProgram program;
    MemoryCharge charge;  // null while the cache keeps the program
  };
  struct Entry {
    Fingerprint fingerprint;
    std::shared_ptr<Charged> program;  // shared with the calls that run it
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  static std::shared_ptr<const CheckedProgram> View(const std::shared_ptr<Charged>& program) {
    return {program, &program->program};
  }
  // Makes room for `bytes` more. Charges programs that calls still use before it drops them.
  // Returns false, and drops no more, if there is no memory for that.
  bool MakeRoom(size_t bytes, Entries& forgotten) PSD_REQUIRES(mutex_);

  const size_t max_entries_;
  const std::shared_ptr<MemoryAccount> memory_;  // shared with the worker
  const size_t max_bytes_;
  mutable Mutex mutex_;                     // leaf
  Entries entries_ PSD_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<Fingerprint, Entries::iterator> index_ PSD_GUARDED_BY(mutex_);
  size_t bytes_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::program
