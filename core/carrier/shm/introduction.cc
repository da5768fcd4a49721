#include "core/carrier/shm/introduction.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/byte_reader.h"
#include "core/carrier/shm/segment.h"

namespace psd::carrier {
namespace {

constexpr absl::string_view kMagic = "psdshm";
constexpr char kVersion = 4;  // changes with kFrameVersion, too
constexpr size_t kIntroductionBytes = 8 + 7 * 8;

void AppendU64(uint64_t value, std::string& to) {
  for (int i = 0; i < 8; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

std::string EncodeIntroduction(const Introduction& introduction) {
  std::string bytes(kMagic);
  bytes.push_back(kVersion);
  bytes.push_back(0);
  const RingSizes& rings = introduction.rings;
  const Limits& limits = introduction.limits;
  for (const uint64_t value :
       {uint64_t{rings.control_bytes}, uint64_t{rings.bulk_bytes}, uint64_t{rings.bulk_rings},
        uint64_t{limits.max_header_bytes}, uint64_t{limits.max_message_bytes},
        uint64_t{limits.max_buffers}, uint64_t{limits.max_assembly_bytes}}) {
    AppendU64(value, bytes);
  }
  return bytes;
}

absl::StatusOr<Introduction> DecodeIntroduction(absl::string_view bytes) {
  if (bytes.size() < 8 || !absl::StartsWith(bytes, kMagic)) {
    return absl::InvalidArgumentError("no psd worker introduces itself there");
  }
  if (bytes[6] != kVersion || bytes[7] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the peer speaks version ",
                                                   static_cast<int>(bytes[6]), ", this worker ",
                                                   static_cast<int>(kVersion)));
  }
  if (bytes.size() != kIntroductionBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an introduction of ", bytes.size(), " bytes; it has ", kIntroductionBytes));
  }
  const absl::string_view numbers = bytes.substr(8);
  ByteReader reader(absl::MakeConstSpan(&numbers, 1));
  Introduction introduction;
  introduction.rings.control_bytes = reader.ReadU64();
  introduction.rings.bulk_bytes = reader.ReadU64();
  introduction.rings.bulk_rings = reader.ReadU64();
  PSD_RETURN_IF_ERROR(CheckRingSizes(introduction.rings));
  introduction.limits.max_header_bytes = reader.ReadU64();
  introduction.limits.max_message_bytes = reader.ReadU64();
  introduction.limits.max_buffers = reader.ReadU64();
  introduction.limits.max_assembly_bytes = reader.ReadU64();
  return introduction;
}

std::string EncodePassedSegment(const PassedSegment& segment) {
  std::string bytes;
  AppendU64(segment.id, bytes);
  AppendU64(segment.bytes, bytes);
  return bytes;
}

absl::StatusOr<PassedSegment> DecodePassedSegment(absl::string_view bytes) {
  if (bytes.size() != 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("a segment is passed with ", bytes.size(), " bytes; it takes 16"));
  }
  ByteReader reader(absl::MakeConstSpan(&bytes, 1));
  PassedSegment segment;
  segment.id = reader.ReadU64();
  segment.bytes = reader.ReadU64();
  return segment;
}

}  // namespace psd::carrier
