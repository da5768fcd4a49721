#pragma once

// Addresses of workers, as text: "127.0.0.1:7071", "[::1]:0", "owner-0.psd:7071". Nothing here
// resolves names.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd {

struct HostPort {
  std::string host;  // an IPv6 address without its brackets
  int port = 0;

  // Whether only this machine can reach the address, that is, "localhost", "::1" or 127.0.0.0/8.
  bool IsLoopback() const;
  // Whether the host means all interfaces, in any spelling that the system takes: "0.0.0.0", "0x0",
  // "::", "::ffff:0.0.0.0". Such an address can be listened on, but not dialled.
  bool IsWildcard() const;
  // Returns the text that ParseHostPort reads back to the same value.
  std::string ToString() const;
};

// The longest host, which is the longest domain name.
inline constexpr size_t kMaxHostBytes = 253;

// Errors: INVALID_ARGUMENT saying what is wrong.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);
// Like ParseHostPort, for an address that is to be dialled, which must have a port other than 0.
absl::StatusOr<HostPort> ParseHostPortToDial(absl::string_view address);

// Returns the address, as "host:port", that others dial to reach a worker that listens on `bound`.
// It is `advertise` if that is "host:port", `advertise` with the port of `bound` if it is "host",
// and `bound` if it is empty.
// Errors: INVALID_ARGUMENT if `advertise` is malformed, means all interfaces or has port 0.
absl::StatusOr<std::string> AdvertisedAddress(absl::string_view bound, absl::string_view advertise);

// Whether `listen` means all interfaces, so that a worker that listens on it must advertise another
// address.
bool NeedsAdvertise(absl::string_view listen);

}  // namespace psd
