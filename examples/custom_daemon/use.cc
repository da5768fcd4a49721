// Calls the functions of the custom daemon (main.cc says how to start it): a function that blocks,
// methods of an object that stays on its owner, and a method that answers later.
//
//   use [127.0.0.1:7071]

#include <cstdio>
#include <memory>
#include <utility>

#include "client/calls.h"
#include "client/psd.h"

namespace {

constexpr char kOwner[] = "owner0";

absl::Status CallFunction(psd::Worker& worker) {
  const psd::Tensor x = psd::Tensor::Of<float>({4}, {1, 2, 3, 6});
  PSD_ASSIGN_OR_RETURN(const psd::Values results,
                       worker.RpcSync(kOwner, psd::Function::Registered("standardize"), {x}));
  PSD_ASSIGN_OR_RETURN(const psd::Tensor y, psd::ReadValue<psd::Tensor>(results[0]));
  std::printf("standardized: %.2f %.2f %.2f %.2f\n", y.data<float>()[0], y.data<float>()[1],
              y.data<float>()[2], y.data<float>()[3]);
  return absl::OkStatus();
}

absl::Status UseObject(psd::Worker& worker) {
  // The buffer stays on the owner on which it was made, and lives as long as there is a reference
  // to it.
  PSD_ASSIGN_OR_RETURN(
      psd::RRef rref, worker.Remote(kOwner, psd::Function::Registered("replay_buffer.new"), {100}));
  const psd::ObjectProxy buffer(worker, std::move(rref));

  // The answer comes when the buffer has three samples, no matter which worker has appended them.
  const psd::Future<psd::Values> filled = buffer.RpcAsync("replay_buffer.when_filled", {3});
  for (float reward : {0.0f, 0.5f, 1.0f}) {
    const psd::Tensor sample = psd::Tensor::Of<float>({2}, {reward, 1 - reward});
    PSD_RETURN_IF_ERROR(buffer.RpcSync("replay_buffer.append", {sample}).status());
  }
  PSD_RETURN_IF_ERROR(filled.Wait().status());

  PSD_ASSIGN_OR_RETURN(const psd::Values drawn,
                       buffer.RpcSync("replay_buffer.sample", {4, /*seed=*/1}));
  PSD_ASSIGN_OR_RETURN(const psd::Tensor samples, psd::ReadValue<psd::Tensor>(drawn[0]));
  std::printf("sampled: %s\n", samples.ToString().c_str());
  return absl::OkStatus();
}

absl::Status Use(const char* address) {
  psd::WorkerOptions options;
  options.name = "trainer0";
  options.owners = {{kOwner, address}};
  PSD_ASSIGN_OR_RETURN(auto worker, psd::Worker::Start(options));
  PSD_RETURN_IF_ERROR(CallFunction(*worker));
  PSD_RETURN_IF_ERROR(UseObject(*worker));
  return worker->Shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Use(argc > 1 ? argv[1] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
