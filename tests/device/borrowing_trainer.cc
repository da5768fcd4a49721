// A trainer in a process of its own that reads a parameter of an owner in place, on the device
// "emu:0" that both have.
//
//   borrowing_trainer NAME ADDRESS PARAMETER
//
// NAME and ADDRESS are those of the owner. Writes the first and the last element to standard output
// each time that it gets a line, until its input ends.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

absl::Status Run(const std::string& owner, const std::string& address, const std::string& name) {
  WorkerOptions options;
  options.name = "borrower";
  options.owners = {{owner, address}};
  options.devices = {testing::NewSharedTestDevice(/*seed=*/0)};
  options.share_devices = true;
  absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Start(std::move(options));
  if (!worker.ok()) return worker.status();
  const absl::StatusOr<RRef> parameter = (*worker)->Lookup(owner, name);
  if (!parameter.ok()) return parameter.status();
  CallOptions there;
  there.device = "emu:0";
  const auto pulled = (*worker)->Pull({*parameter}, there);
  if (!pulled.ok()) return pulled.status();
  for (int read = std::getchar(); read != EOF; read = std::getchar()) {
    const absl::StatusOr<Tensor> here = (*pulled)[0].elements.ToHost();
    if (!here.ok()) return here.status();
    const auto* const elements = here->data<float>();
    std::printf("%g %g\n", elements[0], elements[here->NumElements() - 1]);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace psd

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const absl::Status done = psd::Run(arguments[1], arguments[2], arguments[3]);
  if (!done.ok()) std::fprintf(stderr, "%s\n", done.ToString().c_str());
  return done.ok() ? 0 : 1;
}
