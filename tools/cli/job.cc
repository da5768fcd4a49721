#include "tools/cli/job.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/cli/connection.h"
#include "tools/cli/table.h"

namespace psd::cli {
namespace {

absl::StatusOr<std::unique_ptr<Worker>> Attach(const Options& options,
                                               std::vector<OwnerAddress> owners, int number) {
  WorkerOptions worker;
  worker.name = absl::StrCat("psctl-", ::getpid(), "-", number, "-",
                             absl::Hex(absl::ToUnixNanos(absl::Now())));
  worker.owners = std::move(owners);
  worker.start_timeout = options.timeout;
  worker.join = false;
  return Worker::Start(std::move(worker));
}

// The owner at --address, and the registrar that it names, if that is another one.
absl::StatusOr<std::vector<OwnerAddress>> AskFirst(const Options& options) {
  Connection connection(options);
  v1::WorkerStatus status;
  v1::StatusRequest request;
  request.set_limit(1);
  PSD_RETURN_IF_ERROR(connection.Call(&v1::ParameterService::Stub::Status, request, &status));
  std::vector<OwnerAddress> owners = {{status.name(), options.address}};
  for (const v1::PeerState& peer : status.peers()) {
    if (peer.name() == status.registrar() && !peer.address().empty())
      owners.push_back({peer.name(), peer.address()});
  }
  return owners;
}

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParsePairs(
    const std::string& flag, const std::string& text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::set<std::string> names;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.first.empty() || pair.second.empty() || !names.insert(pair.first).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": expected name=value,name=value,… with each name once, got '",
                       Printable(text), "'"));
    }
    pairs.push_back(pair);
  }
  return pairs;
}

absl::StatusOr<std::unique_ptr<Worker>> AttachToJob(const Options& options) {
  if (!options.owners.empty()) {
    PSD_ASSIGN_OR_RETURN(auto pairs, ParsePairs("--owners", options.owners));
    std::vector<OwnerAddress> owners;
    for (const auto& [name, address] : pairs) owners.push_back({name, address});
    return Attach(options, std::move(owners), 0);
  }
  PSD_ASSIGN_OR_RETURN(std::vector<OwnerAddress> known, AskFirst(options));
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<Worker> first, Attach(options, known, 0));
  PSD_ASSIGN_OR_RETURN(std::vector<OwnerAddress> all, first->JobOwners());
  // What was dialled already is dialled the same way.
  for (OwnerAddress& owner : all) {
    if (owner.name == known[0].name) owner.address = known[0].address;
  }
  const bool listed = std::any_of(all.begin(), all.end(), [&](const OwnerAddress& owner) {
    return owner.name == known[0].name;
  });
  if (!listed) all.push_back(known[0]);
  if (all.size() == 1) return first;
  PSD_RETURN_IF_ERROR(first->Shutdown());
  return Attach(options, std::move(all), 1);
}

}  // namespace psd::cli
