#pragma once

// A carrier that uses shared memory towards workers of the same host, and another carrier towards
// all other workers.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

// Returns the name of the socket at which a worker that listens at `bound`, "host:port", can be
// dialled by workers of its host. Socket names without files are seen only within a network
// namespace, as are loopback addresses: a process that can dial one can dial the other. Errors:
// INVALID_ARGUMENT if `bound` is no such address.
absl::StatusOr<std::string> SocketOf(const std::string& bound);

// Returns the sockets at which the worker that answers at `address` listens if it runs on this host
// and in this network namespace, in the order in which the system would choose among them. Returns
// an empty vector if it runs elsewhere, or if `address` has a name that would have to be looked up.
std::vector<std::string> SocketsFor(const std::string& address);

// The sockets of workers in a folder that several network namespaces of this host share. Each is a
// file, whose name is the address that others dial. Thread-safe.
class SocketFolder {
 public:
  // `advertise` is that of the worker that listens (AdvertisedAddress).
  SocketFolder(std::string path, std::string advertise)
      : path_(std::move(path)), advertise_(std::move(advertise)) {}

  // Returns the socket of the worker that can be dialled at `address`. Nothing for an address that
  // means another worker in each namespace (loopback), or none, or that is too long.
  std::optional<std::string> SocketAt(const std::string& address) const;
  // Returns the socket at which the worker that listens at `bound` is dialled. Errors:
  // FAILED_PRECONDITION if others cannot dial it there.
  absl::StatusOr<std::string> OwnSocket(const std::string& bound) const;

 private:
  const std::string path_;
  const std::string advertise_;
};

// Listens with both carriers, and dials with `shm` first where SocketsFor or `folder` names a
// socket. If the introduction fails there, the same link is opened with `network`. Nothing was sent
// yet, so nothing is lost. If a link ends later, the next caller that needs it opens it in the same
// way. Links of `network` say why they are not of `shm` (Link::WhyNotShared). If somebody listened
// at the socket, the reason is also logged as a warning ("shared_memory_unused").
//
// If `shm` is an error, all links are of `network`, and the error is their reason.
//
// `folder` is null if there is none. The other pointers are shared with their makers. The carriers
// are shut down together with this one.
std::shared_ptr<Carrier> NewHostCarrier(std::shared_ptr<Carrier> network,
                                        absl::StatusOr<std::shared_ptr<Carrier>> shm,
                                        std::unique_ptr<const SocketFolder> folder,
                                        std::shared_ptr<Logger> logger);

}  // namespace psd::carrier
