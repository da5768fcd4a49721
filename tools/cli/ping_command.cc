// psctl ping: checks whether an owner serves, and measures how fast it answers. Probes can use its
// exit code.

#include <chrono>
#include <cstdio>

#include "tools/cli/command.h"
#include "tools/cli/connection.h"

namespace psd::cli {

absl::Status RunPing(const Options& options, const std::vector<std::string>&) {
  Connection connection(options);
  // The first check opens the connection; the second is measured.
  absl::Status status = connection.CheckHealth();
  if (!status.ok()) return status;
  const auto start = std::chrono::steady_clock::now();
  status = connection.CheckHealth();
  if (!status.ok()) return status;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (options.json) {
    std::printf("{\"address\": \"%s\", \"serving\": true, \"round_trip_ms\": %.3f}\n",
                options.address.c_str(), took.count());
  } else {
    std::printf("%s serves; one round trip took %.3f ms\n", options.address.c_str(), took.count());
  }
  return absl::OkStatus();
}

}  // namespace psd::cli
