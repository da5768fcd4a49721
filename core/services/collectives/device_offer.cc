#include "core/services/collectives/device_offer.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/xxh128.h"

namespace psd::services {
namespace {

constexpr size_t kChecksumBytes = 32;
constexpr size_t kTextBytes = DeviceCollectives::kMostTextBytes;

std::string Padded(const std::string& text, size_t bytes) {
  std::string padded = text.substr(0, bytes);
  padded.resize(bytes, '\0');
  return padded;
}

std::string Unpadded(absl::string_view padded) {
  return std::string(padded.substr(0, padded.find('\0')));
}

}  // namespace

std::string ChecksumOf(const CollectiveCall& call) {
  checkpoint::Xxh128 sum;
  sum.Add(call.ToString());
  return sum.Digest();
}

std::string EncodeOffer(const DeviceOffer& offer) {
  return absl::StrCat(std::string(1, static_cast<char>(offer.kind)),
                      Padded(offer.call, kChecksumBytes), Padded(offer.library, kTextBytes),
                      Padded(offer.identity, kTextBytes));
}

DeviceOffer DecodeOffer(absl::string_view bytes) {
  DeviceOffer offer;
  if (bytes.size() != kOfferBytes) return offer;
  // A kind that this build does not know cannot compute together with its own.
  if (bytes[0] == DeviceOffer::kDevice) offer.kind = DeviceOffer::kDevice;
  if (bytes[0] == DeviceOffer::kNoLibrary) offer.kind = DeviceOffer::kNoLibrary;
  offer.call = Unpadded(bytes.substr(1, kChecksumBytes));
  offer.library = Unpadded(bytes.substr(1 + kChecksumBytes, kTextBytes));
  offer.identity = Unpadded(bytes.substr(1 + kChecksumBytes + kTextBytes, kTextBytes));
  return offer;
}

std::string ObstacleTo(const std::vector<DeviceOffer>& offers,
                       const std::vector<std::string>& workers) {
  std::map<std::string, size_t> used_by;  // by GPU
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const DeviceOffer& offer = offers[rank];
    if (offer.kind == DeviceOffer::kHost)
      return absl::StrCat(workers[rank], " has its tensor elsewhere");
    if (offer.kind == DeviceOffer::kNoLibrary)
      return absl::StrCat(workers[rank], " has no library for its GPU");
    if (offer.library != offers[0].library)
      return absl::StrCat(workers[0], " has ", offers[0].library, ", and ", workers[rank], " has ",
                          offer.library);
    const auto [other, is_new] = used_by.emplace(offer.identity, rank);
    if (!is_new)
      return absl::StrCat(workers[other->second], " and ", workers[rank], " share a GPU");
  }
  return "";
}

}  // namespace psd::services
