#pragma once

// The two segments of a link: this end's, which only this end writes, and the other end's, which
// this end only reads.

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/carrier/shm/ring_format.h"
#include "core/carrier/shm/unique_fd.h"

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
  ~OwnSegment();
  OwnSegment(const OwnSegment&) = delete;
  OwnSegment& operator=(const OwnSegment&) = delete;

  SegmentHeader& header() { return *static_cast<SegmentHeader*>(memory_); }
  std::byte* ring(size_t number) {
    return static_cast<std::byte*>(memory_) + sizes_.OffsetOf(number);
  }
  const RingSizes& sizes() const { return sizes_; }

  // The descriptor that the other end maps. CloseFd closes it; the memory stays.
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_ = UniqueFd(); }

 private:
  OwnSegment(const RingSizes& sizes, UniqueFd fd, void* memory, MemoryCharge charge);

  const RingSizes sizes_;
  UniqueFd fd_;
  void* const memory_;
  const MemoryCharge charge_;
};

// A segment that another process made, mapped for reading. Thread-compatible.
class PeerSegment {
 public:
  // Takes the descriptor that a peer passed. Reading the memory cannot fail later: the peer cannot
  // shrink the segment or punch holes into it. Errors: INVALID_ARGUMENT saying what is wrong with
  // the descriptor: no sealed memory, a missing seal, too short, not open for writing, or pages
  // that do not exist yet; RESOURCE_EXHAUSTED if it cannot be mapped.
  static absl::StatusOr<std::unique_ptr<PeerSegment>> Map(const RingSizes& sizes, UniqueFd fd);
  ~PeerSegment();
  PeerSegment(const PeerSegment&) = delete;
  PeerSegment& operator=(const PeerSegment&) = delete;

  const SegmentHeader& header() const { return *static_cast<const SegmentHeader*>(memory_); }
  const std::byte* ring(size_t number) const {
    return static_cast<const std::byte*>(memory_) + sizes_.OffsetOf(number);
  }
  const RingSizes& sizes() const { return sizes_; }

 private:
  PeerSegment(const RingSizes& sizes, const void* memory) : sizes_(sizes), memory_(memory) {}

  const RingSizes sizes_;
  const void* const memory_;
};

}  // namespace psd::carrier
