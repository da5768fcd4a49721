#pragma once

// A carrier that uses shared memory towards workers of the same host, and another carrier towards
// all other workers.

#include <memory>
#include <string>
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

// Listens with both carriers, and dials with `shm` first where SocketsFor names a socket. If the
// introduction fails there, the same link is opened with `network`. Nothing was sent yet, so
// nothing is lost. If a link ends later, the next caller that needs it opens it in the same way.
// Links of `network` say why they are not of `shm` (Link::WhyNotShared). If somebody listened at
// the socket, the reason is also logged as a warning ("shared_memory_unused").
//
// If `shm` is an error, all links are of `network`, and the error is their reason.
//
// All pointers are shared with their makers. The carriers are shut down together with this one.
std::shared_ptr<Carrier> NewHostCarrier(std::shared_ptr<Carrier> network,
                                        absl::StatusOr<std::shared_ptr<Carrier>> shm,
                                        std::shared_ptr<Logger> logger);

}  // namespace psd::carrier
