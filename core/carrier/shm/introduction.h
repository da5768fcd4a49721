#pragma once

// The bodies of the packets that pass a segment: the first packet of each end of a link, with its
// rings and its limits, and those about further segments, in which lent messages lie.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/carrier/carrier.h"
#include "core/carrier/shm/ring_format.h"

namespace psd::carrier {

// The body of a hello packet, version 4; integers are little-endian:
//
//   offset  size
//        0     6  "psdshm"
//        6     1  version, 4
//        7     1  zero
//        8     8  bytes of the ring for control
//       16     8  bytes of each ring for pieces
//       24     8  number of rings for pieces
//       32  4 x 8  max_header_bytes, max_message_bytes, max_buffers, max_assembly_bytes
struct Introduction {
  RingSizes rings;
  Limits limits;  // without max_send_queue_bytes, which is not sent
};

std::string EncodeIntroduction(const Introduction& introduction);

// Errors: INVALID_ARGUMENT naming what is wrong.
absl::StatusOr<Introduction> DecodeIntroduction(absl::string_view bytes);

// The body of a packet of kind kSegment: 8 bytes each, little-endian.
struct PassedSegment {
  uint64_t id = 0;
  uint64_t bytes = 0;
};

std::string EncodePassedSegment(const PassedSegment& segment);

// Errors: INVALID_ARGUMENT if it has another length.
absl::StatusOr<PassedSegment> DecodePassedSegment(absl::string_view bytes);

}  // namespace psd::carrier
