#pragma once

// Addresses of workers: "127.0.0.1:7071", "[::1]:0", "owner-0.psd:7071". A host and a port, nothing
// looked up.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd {

struct HostPort {
  std::string host;  // an IPv6 address without its brackets
  int port = 0;

  // Only this machine reaches it.
  bool IsLoopback() const;
  // All interfaces: an address to listen on, which nobody can dial.
  bool IsWildcard() const;
  // Reads back to the same.
  std::string ToString() const;
};

// The longest host: that of a domain name.
inline constexpr size_t kMaxHostBytes = 253;

// Errors: INVALID_ARGUMENT saying what is wrong.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// Where others dial a worker that listens on `bound`, as "host:port": `advertise`, which is
// "host:port", or "host" with the port of `bound`. Empty: `bound` itself.
// Errors: INVALID_ARGUMENT if `advertise` is no such address or names all interfaces or port 0.
absl::StatusOr<std::string> AdvertisedAddress(absl::string_view bound, absl::string_view advertise);

// Whether a worker that is to listen on `listen` needs an `advertise`: if that is all interfaces.
bool NeedsAdvertise(absl::string_view listen);

}  // namespace psd
