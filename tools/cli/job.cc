#include "tools/cli/job.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/nearest_name.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
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

constexpr absl::string_view kNameThem =
    "name all owners of the job yourself: --owners NAME=HOST:PORT,…";

absl::StatusOr<v1::WorkerStatus> AskStatus(const Options& options) {
  Connection connection(options);
  v1::WorkerStatus status;
  v1::StatusRequest request;
  request.set_limit(1);
  PSD_RETURN_IF_ERROR(connection.Call(&v1::ParameterService::Stub::Status, request, &status));
  return status;
}

// The daemons that are asked for the owners of the job.
struct FirstAsked {
  std::vector<OwnerAddress> daemons;  // the one at --address and, if it is another, the registrar
  bool hosts_nothing = false;         // the one at --address is a registrar without values
};

// Errors: INVALID_ARGUMENT if the registrar is to be left out, because only it knows the owners.
absl::StatusOr<FirstAsked> AskFirst(const Options& options) {
  PSD_ASSIGN_OR_RETURN(const v1::WorkerStatus status, AskStatus(options));
  const std::vector<std::string> left_out = LeftOut(options);
  if (std::count(left_out.begin(), left_out.end(), status.registrar()) > 0) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(
            "--leave_out: ", status.registrar(),
            " is the registrar, which is asked for the owners of the job when none are named")),
        kNameThem);
  }
  FirstAsked first;
  first.daemons.push_back({status.name(), options.address});
  first.hosts_nothing = status.hosts_nothing();
  for (const v1::PeerState& peer : status.peers()) {
    if (peer.name() == status.registrar() && !peer.address().empty())
      first.daemons.push_back({peer.name(), peer.address()});
  }
  return first;
}

// Returns all owners that the registrar knows, in the order of their names: the order in which they
// joined differs from start to start.
// Errors: FAILED_PRECONDITION if --address leads to a registrar without values and it knows none.
absl::StatusOr<std::vector<OwnerAddress>> FindOwners(const Options& options) {
  PSD_ASSIGN_OR_RETURN(const FirstAsked asked, AskFirst(options));
  const std::vector<OwnerAddress>& known = asked.daemons;
  auto first = Attach(options, known, 0);
  if (!first.ok())
    return WithRemedy(Annotate(first.status(), "asking for the owners of the job"), kNameThem);
  PSD_ASSIGN_OR_RETURN(std::vector<OwnerAddress> all, (*first)->JobOwners());
  if (all.empty() && asked.hosts_nothing) {
    return WithRemedy(
        absl::FailedPreconditionError(
            absl::StrCat(known[0].name, " at ", options.address,
                         " is a registrar that hosts no values (--registrar_only), and no owner "
                         "has joined it")),
        "give the address of an owner: --address HOST:PORT, or --owners NAME=HOST:PORT,…");
  }
  // Owners that were reached already keep the address at which they were reached.
  for (OwnerAddress& owner : all) {
    if (owner.name == known[0].name) owner.address = known[0].address;
  }
  const bool listed = std::any_of(all.begin(), all.end(), [&](const OwnerAddress& owner) {
    return owner.name == known[0].name;
  });
  if (!listed && !asked.hosts_nothing) all.push_back(known[0]);
  std::sort(all.begin(), all.end(),
            [](const OwnerAddress& a, const OwnerAddress& b) { return a.name < b.name; });
  PSD_RETURN_IF_ERROR((*first)->Shutdown());
  return all;
}

absl::Status RemoveLeftOut(const Options& options, std::vector<OwnerAddress>& owners) {
  for (const std::string& name : LeftOut(options)) {
    const auto owner = std::find_if(owners.begin(), owners.end(),
                                    [&](const OwnerAddress& each) { return each.name == name; });
    if (owner == owners.end()) {
      std::vector<std::string> names;
      for (const OwnerAddress& each : owners) names.push_back(each.name);
      return absl::InvalidArgumentError(absl::StrCat("--leave_out: the job has no owner ",
                                                     Quoted(name),
                                                     DidYouMean(NearestName(name, names))));
    }
    owners.erase(owner);
  }
  return absl::OkStatus();
}

// Returns why the owner cannot be attached to, or an empty text if it can. Then `hosts_nothing`
// says whether it is no owner but a registrar without values.
std::string ProblemOf(const Options& options, const OwnerAddress& owner, bool& hosts_nothing) {
  if (owner.address.empty())
    return absl::StrCat(owner.name,
                        " is absent; the registrar's configuration names it, or it had joined "
                        "and was lost");
  Options there = options;
  there.address = owner.address;
  const absl::StatusOr<v1::WorkerStatus> status = AskStatus(there);
  if (!status.ok()) return absl::StrCat(owner.name, ": ", status.status().message());
  if (status->name() != owner.name) {
    return absl::StrCat(owner.name, ": the worker at ", owner.address, " is ",
                        Quoted(status->name()));
  }
  hosts_nothing = status->hosts_nothing();
  return "";
}

absl::Status CheckOwners(const Options& options, const std::vector<OwnerAddress>& owners,
                         absl::string_view remedy) {
  std::vector<std::string> problems;
  for (const OwnerAddress& owner : owners) {
    bool hosts_nothing = false;
    std::string problem = ProblemOf(options, owner, hosts_nothing);
    if (!problem.empty()) problems.push_back(std::move(problem));
    if (hosts_nothing) {
      return WithRemedy(
          absl::FailedPreconditionError(
              absl::StrCat("--owners: ", owner.name, " at ", owner.address,
                           " is no owner but a registrar that hosts no values (--registrar_only)")),
          absl::StrCat("remove ", owner.name, " from --owners"));
    }
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      problems.size(), " of ", owners.size(), " owners of the job cannot be reached:\n  ",
      absl::StrJoin(problems, "\n  "), "\nbring them back", remedy));
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

std::vector<std::string> LeftOut(const Options& options) {
  std::vector<std::string> names;
  if (!options.leave_out.empty()) names = absl::StrSplit(options.leave_out, ',');
  return names;
}

absl::StatusOr<std::unique_ptr<Worker>> AttachToJob(const Options& options,
                                                    absl::string_view remedy) {
  std::vector<OwnerAddress> owners;
  if (!options.owners.empty()) {
    PSD_ASSIGN_OR_RETURN(auto pairs, ParsePairs("--owners", options.owners));
    for (const auto& [name, address] : pairs) owners.push_back({name, address});
  } else {
    PSD_ASSIGN_OR_RETURN(owners, FindOwners(options));
  }
  PSD_RETURN_IF_ERROR(RemoveLeftOut(options, owners));
  PSD_RETURN_IF_ERROR(CheckOwners(options, owners, remedy));
  return Attach(options, std::move(owners), 1);
}

}  // namespace psd::cli
