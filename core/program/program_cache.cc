#include "core/program/program_cache.h"

#include <iterator>
#include <utility>

namespace psd::program {

std::shared_ptr<const CheckedProgram> ProgramCache::Find(const Fingerprint& fingerprint) {
  MutexLock lock(mutex_);
  auto it = index_.find(fingerprint);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->program;
}

std::shared_ptr<const CheckedProgram> ProgramCache::Insert(CheckedProgram program) {
  const Fingerprint fingerprint = FingerprintOf(program.program());
  const size_t bytes = CanonicalBytes(program.program()).size();
  auto kept = std::make_shared<const CheckedProgram>(std::move(program));
  Entries forgotten;  // declared before the lock, so that it is destroyed without it
  MutexLock lock(mutex_);
  auto it = index_.find(fingerprint);
  if (it != index_.end()) {
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->program;
  }
  if (bytes > max_bytes_ || max_entries_ == 0) return kept;
  entries_.push_front({fingerprint, kept, bytes});
  index_[fingerprint] = entries_.begin();
  bytes_ += bytes;
  while (entries_.size() > max_entries_ || bytes_ > max_bytes_) {
    auto last = std::prev(entries_.end());
    index_.erase(last->fingerprint);
    bytes_ -= last->bytes;
    forgotten.splice(forgotten.begin(), entries_, last);
  }
  return kept;
}

size_t ProgramCache::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace psd::program
