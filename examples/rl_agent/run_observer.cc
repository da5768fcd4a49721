// One of the observers. run_agent.cc says how to start all of them. It serves until the agent has
// finished.
//
//   run_observer NUMBER [127.0.0.1:7071]

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "client/psd.h"
#include "examples/rl_agent/job.h"
#include "examples/rl_agent/observer.h"

namespace psd::examples {
namespace {

absl::Status Run(int number, const char* address) {
  WorkerOptions options = MemberOptions(ObserverName(number), address);
  options.listen = "127.0.0.1:0";  // the agent finds it through the registrar
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> observer,
                       Observer::Start(options, static_cast<uint64_t>(number)));
  PSD_RETURN_IF_ERROR(observer->worker().Barrier("ready"));
  ShutdownOptions together;
  together.with_group = true;
  return observer->worker().Shutdown(together);
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: run_observer NUMBER [ADDRESS]\n", stderr);
    return 2;
  }
  const absl::Status status =
      psd::examples::Run(std::atoi(argv[1]), argc > 2 ? argv[2] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "run_observer: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
