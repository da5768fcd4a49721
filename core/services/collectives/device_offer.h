#pragma once

// The records that the ranks of a group exchange before a call which their devices may perform.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/device_collectives.h"
#include "core/services/collectives/collective_call.h"

namespace psd::services {

// Where a rank's tensor is, and how it could communicate.
struct DeviceOffer {
  enum Kind : uint8_t { kHost = 0, kNoLibrary = 1, kDevice = 2 };
  Kind kind = kHost;
  std::string call;      // ChecksumOf the call
  std::string library;   // DeviceCollectives::Library
  std::string identity;  // DeviceCollectives::Identity
};

// Returns a text of 32 bytes that is equal for calls that agree.
std::string ChecksumOf(const CollectiveCall& call);

// The bytes of an offer: its kind, 32 bytes of the call's checksum, and the two texts, each with
// zeros behind it up to its greatest length.
inline constexpr size_t kOfferBytes = 1 + 32 + 2 * DeviceCollectives::kMostTextBytes;
std::string EncodeOffer(const DeviceOffer& offer);
// A kind that this build does not know, or another number of bytes, is an offer of kHost.
DeviceOffer DecodeOffer(absl::string_view bytes);

// Returns why the devices cannot perform the call, naming the ranks that prevent it; empty if they
// can. `offers` and `workers` are by rank, and there are as many of both.
std::string ObstacleTo(const std::vector<DeviceOffer>& offers,
                       const std::vector<std::string>& workers);

}  // namespace psd::services
