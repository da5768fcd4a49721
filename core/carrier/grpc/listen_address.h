#pragma once

// Addresses of the form host:port, and why one cannot be listened at.

#include <string>

#include "absl/status/status.h"

namespace psd::carrier {

// `address` with `port` in place of its own: "127.0.0.1:0", 7071 -> "127.0.0.1:7071".
std::string WithPort(const std::string& address, int port);

// Binds `address` for a moment. UNAVAILABLE that names it and the system's reason if that fails.
absl::Status ProbeListen(const std::string& address);

}  // namespace psd::carrier
