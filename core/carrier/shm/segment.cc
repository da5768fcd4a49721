#include "core/carrier/shm/segment.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/bulk_queue.h"

namespace psd::carrier {
namespace {

bool PowerOfTwoWithin(size_t bytes) {
  return bytes >= kMinRingBytes && bytes <= kMaxRingBytes && (bytes & (bytes - 1)) == 0;
}

}  // namespace

absl::Status CheckRingSizes(const RingSizes& sizes) {
  for (const size_t bytes : {sizes.control_bytes, sizes.bulk_bytes}) {
    if (PowerOfTwoWithin(bytes)) continue;
    return absl::InvalidArgumentError(absl::StrCat("a ring of ", bytes,
                                                   " bytes; powers of two from ", kMinRingBytes,
                                                   " to ", kMaxRingBytes, " work"));
  }
  if (sizes.bulk_rings < 1 || sizes.bulk_rings > BulkQueue::kMaxStreams) {
    return absl::InvalidArgumentError(absl::StrCat(sizes.bulk_rings, " rings for pieces; 1 to ",
                                                   BulkQueue::kMaxStreams, " work"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OwnSegment>> OwnSegment::Create(const RingSizes& sizes,
                                                               MemoryAccount& account) {
  PSD_RETURN_IF_ERROR(CheckRingSizes(sizes));
  const size_t bytes = sizes.SegmentBytes();
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, account.Charge(bytes));
  PSD_ASSIGN_OR_RETURN(SealedMemory memory, MakeSealedMemory("psd-rings", "a link", bytes));
  new (memory.mapping.data()) SegmentHeader;
  return std::unique_ptr<OwnSegment>(new OwnSegment(sizes, std::move(memory), std::move(charge)));
}

OwnSegment::OwnSegment(const RingSizes& sizes, SealedMemory memory, MemoryCharge charge)
    : sizes_(sizes), memory_(std::move(memory)), charge_(std::move(charge)) {}

absl::StatusOr<std::unique_ptr<PeerSegment>> PeerSegment::Map(const RingSizes& sizes, UniqueFd fd) {
  PSD_RETURN_IF_ERROR(CheckRingSizes(sizes));
  PSD_ASSIGN_OR_RETURN(MemoryMapping mapping,
                       MapSealedMemory(fd, sizes.SegmentBytes(), "its rings"));
  return std::unique_ptr<PeerSegment>(new PeerSegment(sizes, std::move(mapping)));
}

}  // namespace psd::carrier
