#include "tests/device/borrowing_trainer.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/status.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "tests/device/device_under_test.h"

namespace psd::testing {
namespace {

constexpr int kMostAttempts = 20;

absl::Status Run(const std::string& trainer, const OwnerAddress& owner, const std::string& name) {
  DeviceUnderTestOptions shared;
  shared.shareable = true;
  WorkerOptions options;
  options.owners = {owner};
  options.devices = {OpenDeviceUnderTest(shared)};
  options.share_devices = true;
  std::unique_ptr<Worker> worker;
  const auto shares_memory = [&worker] {
    const std::vector<rpc::PeerStatus> peers = RuntimeOf(*worker).agent().Peers();
    return std::any_of(peers.begin(), peers.end(),
                       [](const rpc::PeerStatus& peer) { return peer.shares_memory(); });
  };
  // On a busy machine the first link may use the network, because shared memory takes too long.
  for (int attempt = 0; worker == nullptr || !shares_memory(); ++attempt) {
    if (attempt == kMostAttempts) return absl::UnavailableError("no link of shared memory");
    options.name = absl::StrCat(trainer, "-", attempt);
    PSD_ASSIGN_OR_RETURN(worker, Worker::Start(options));
  }
  PSD_ASSIGN_OR_RETURN(const RRef parameter, worker->Lookup(owner.name, name));
  CallOptions there;
  there.device = NameOfDevice();
  PSD_ASSIGN_OR_RETURN(auto pulled, worker->Pull({parameter}, there));
  for (int read = std::getchar(); read != EOF; read = std::getchar()) {
    if (read == 'p') {
      PSD_ASSIGN_OR_RETURN(pulled, worker->Pull({parameter}, there));
    }
    PSD_ASSIGN_OR_RETURN(const Tensor here, pulled[0].elements.ToHost());
    const auto* const elements = here.data<float>();
    std::printf("%g %g\n", elements[0], elements[here.NumElements() - 1]);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace

int RunBorrowingTrainer(int count, char** arguments) {
  if (count != 6) return 2;
  const absl::Status done = Run(arguments[2], {arguments[3], arguments[4]}, arguments[5]);
  if (!done.ok()) std::fprintf(stderr, "%s: %s\n", arguments[2], done.ToString().c_str());
  return done.ok() ? 0 : 1;
}

}  // namespace psd::testing
