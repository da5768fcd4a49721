#pragma once

// The two segments of a link: this end's, which only this end writes, and the other end's, which
// this end only reads.

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/base/sealed_memory.h"
#include "core/base/unique_fd.h"
#include "core/carrier/shm/ring_format.h"

namespace psd::carrier {

// Checks sizes that a peer told or an option asks for. Errors: INVALID_ARGUMENT naming the number.
absl::Status CheckRingSizes(const RingSizes& sizes);

// A segment that this process makes and maps for writing. It is sealed: its length is fixed, and
// no process can map it for writing any more. Thread-compatible.
class OwnSegment {
 public:
  // `account` is charged for all of it. Errors: RESOURCE_EXHAUSTED from the account, or naming the
  // size if the system has no memory or descriptor for it; UNIMPLEMENTED if the system has no such
  // seals.
  static absl::StatusOr<std::unique_ptr<OwnSegment>> Create(const RingSizes& sizes,
                                                            MemoryAccount& account);
  OwnSegment(const OwnSegment&) = delete;
  OwnSegment& operator=(const OwnSegment&) = delete;

  SegmentHeader& header() { return *reinterpret_cast<SegmentHeader*>(memory_.mapping.data()); }
  std::byte* ring(size_t number) { return memory_.mapping.data() + sizes_.OffsetOf(number); }
  const RingSizes& sizes() const { return sizes_; }

  // The descriptor that the other end maps. CloseFd closes it; the memory stays.
  int fd() const { return memory_.fd.get(); }
  void CloseFd() { memory_.fd = UniqueFd(); }

 private:
  OwnSegment(const RingSizes& sizes, SealedMemory memory, MemoryCharge charge);

  const RingSizes sizes_;
  SealedMemory memory_;
  const MemoryCharge charge_;
};

// A segment that another process made, mapped for reading. Thread-compatible.
class PeerSegment {
 public:
  // Takes the descriptor that a peer passed. Reading the memory cannot fail later. Errors:
  // INVALID_ARGUMENT if sizes or descriptor are wrong, RESOURCE_EXHAUSTED if the memory cannot be
  // mapped (sealed_memory.h).
  static absl::StatusOr<std::unique_ptr<PeerSegment>> Map(const RingSizes& sizes, UniqueFd fd);
  PeerSegment(const PeerSegment&) = delete;
  PeerSegment& operator=(const PeerSegment&) = delete;

  const SegmentHeader& header() const {
    return *reinterpret_cast<const SegmentHeader*>(mapping_.data());
  }
  const std::byte* ring(size_t number) const { return mapping_.data() + sizes_.OffsetOf(number); }
  const RingSizes& sizes() const { return sizes_; }

 private:
  PeerSegment(const RingSizes& sizes, MemoryMapping mapping)
      : sizes_(sizes), mapping_(std::move(mapping)) {}

  const RingSizes sizes_;
  const MemoryMapping mapping_;
};

}  // namespace psd::carrier
