#include "bench/server.h"

#include "absl/time/time.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Environment& environment,
                                                      const std::vector<std::string>& command) {
  const Network& network = environment.network;
  std::vector<std::string> words = network.enter;
  words.insert(words.end(), command.begin(), command.end());
  auto server = std::make_unique<Server>();
  PSD_ASSIGN_OR_RETURN(server->process_, Process::Start(words));
  PSD_ASSIGN_OR_RETURN(server->address_, server->process_->ReadLine(kStartTimeout));
  if (network.delay == absl::ZeroDuration()) return server;
  PSD_ASSIGN_OR_RETURN(server->route_,
                       Process::Start({environment.helper, "route", server->address_,
                                       absl::FormatDuration(network.delay)}));
  PSD_ASSIGN_OR_RETURN(server->address_, server->route_->ReadLine(kStartTimeout));
  return server;
}

}  // namespace psd::bench
