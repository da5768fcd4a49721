// One of the trainers. server.cc says how to start all of them.
//
//   train NUMBER [127.0.0.1:7071]

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "client/psd.h"
#include "examples/batch_updating_ps/trainer.h"

namespace psd::examples {
namespace {

constexpr char kServer[] = "owner0";
constexpr int kSteps = 60;

absl::Status Train(const std::string& number, const std::string& address) {
  WorkerOptions options;
  options.name = "trainer" + number;
  options.owners = {{kServer, address}};
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Start(options));
  const auto seed = static_cast<uint64_t>(std::atoi(number.c_str()));
  PSD_ASSIGN_OR_RETURN(const Points points, MakePoints(64, seed));
  PSD_ASSIGN_OR_RETURN(const std::vector<double> losses, TrainOn(*worker, kServer, points, kSteps));
  for (size_t step = 0; step < losses.size(); step += 10) {
    std::printf("%s: step %2zu  loss %.5f\n", worker->name().c_str(), step, losses[step]);
  }
  return worker->Shutdown();
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: train NUMBER [ADDRESS]\n", stderr);
    return 2;
  }
  const absl::Status status = psd::examples::Train(argv[1], argc > 2 ? argv[2] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
