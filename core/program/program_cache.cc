#include "core/program/program_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace psd::program {
namespace {

size_t MaxBytes(const MemoryAccount* memory, size_t max_bytes) {
  if (memory == nullptr || memory->limit_bytes() == 0) return max_bytes;
  return std::min(max_bytes, memory->limit_bytes() / 64);
}

}  // namespace

ProgramCache::ProgramCache(size_t max_entries, std::shared_ptr<MemoryAccount> memory,
                           size_t max_bytes)
    : max_entries_(max_entries),
      memory_(std::move(memory)),
      max_bytes_(MaxBytes(memory_.get(), max_bytes)) {}

std::shared_ptr<const CheckedProgram> ProgramCache::Find(const Fingerprint& fingerprint) {
  MutexLock lock(mutex_);
  auto it = index_.find(fingerprint);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return View(it->second->program);
}

bool ProgramCache::MakeRoom(size_t bytes, Entries& forgotten) {
  if (bytes > max_bytes_ || max_entries_ == 0) return false;
  while (entries_.size() >= max_entries_ || bytes_ + bytes > max_bytes_) {
    auto last = std::prev(entries_.end());
    if (memory_ != nullptr && last->program.use_count() > 1) {
      auto charge = memory_->Charge(last->bytes);
      if (!charge.ok()) return false;
      last->program->charge = *std::move(charge);
    }
    index_.erase(last->fingerprint);
    bytes_ -= last->bytes;
    forgotten.splice(forgotten.begin(), entries_, last);
  }
  return true;
}

absl::StatusOr<std::shared_ptr<const CheckedProgram>> ProgramCache::Insert(CheckedProgram checked) {
  const Fingerprint fingerprint = FingerprintOf(checked.program());
  const size_t bytes = MemoryBytes(checked.program());
  const auto program = std::make_shared<Charged>(Charged{std::move(checked), nullptr});
  MemoryCharge charge;
  if (memory_ != nullptr) {
    PSD_ASSIGN_OR_RETURN(charge, memory_->Charge(bytes));
  }
  Entries forgotten;  // declared before the lock, so it is destroyed after the lock is released
  MutexLock lock(mutex_);
  auto it = index_.find(fingerprint);
  if (it != index_.end()) {
    entries_.splice(entries_.begin(), entries_, it->second);
    return View(it->second->program);
  }
  if (MakeRoom(bytes, forgotten)) {
    entries_.push_front({fingerprint, program, bytes});
    index_[fingerprint] = entries_.begin();
    bytes_ += bytes;
  } else {
    program->charge = std::move(charge);
  }
  return View(program);
}

size_t ProgramCache::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace psd::program
