// A trainer that psctl run starts: joins the job that its environment describes, meets the other
// ranks, prints one line and leaves.

#include <cstdio>
#include <utility>

#include "client/psd.h"

namespace {

absl::Status Meet() {
  PSD_ASSIGN_OR_RETURN(psd::WorkerOptions options, psd::WorkerOptions::FromEnvironment());
  const unsigned size = options.group_size;
  const unsigned group_rank = options.group_rank.value_or(size);
  PSD_ASSIGN_OR_RETURN(auto worker, psd::Worker::Start(std::move(options)));
  PSD_RETURN_IF_ERROR(worker->Barrier("start"));
  std::printf("%s: rank %d, place %u of %u\n", worker->name().c_str(), worker->rank(), group_rank,
              size);
  PSD_RETURN_IF_ERROR(worker->Barrier("end"));
  return worker->Shutdown();
}

}  // namespace

int main() {
  const absl::Status met = Meet();
  if (met.ok()) return 0;
  std::fprintf(stderr, "%s\n", met.ToString().c_str());
  return 3;
}
