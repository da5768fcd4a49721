// Worker options from the variables that a launcher sets.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/worker.h"
#include "core/base/host_port.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/shared_folder.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"

namespace psd {
namespace {

constexpr char kName[] = "PSD_NAME";
constexpr char kRank[] = "PSD_RANK";
constexpr char kGroupSize[] = "PSD_GROUP_SIZE";
constexpr char kOwners[] = "PSD_OWNERS";
constexpr char kRegistrar[] = "PSD_REGISTRAR";
constexpr char kSharedFolder[] = "PSD_SHARED_MEMORY_FOLDER";

// The most members that a registrar admits.
constexpr uint32_t kMostTrainers = 65'536;

std::optional<std::string> Read(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::Status NotSet(absl::string_view variables, absl::string_view remedy) {
  return WithRemedy(absl::FailedPreconditionError(absl::StrCat(variables, " not set")), remedy);
}

absl::Status Bad(const char* variable, absl::string_view value, absl::string_view problem,
                 absl::string_view remedy) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(variable, " is ", Quoted(value), ": ", problem)),
      remedy);
}

// Parses a whole number from `least` to `most`, of digits only.
absl::StatusOr<uint32_t> ReadNumber(const char* variable, absl::string_view value, uint32_t least,
                                    uint32_t most) {
  uint32_t number = 0;
  const bool digits = std::all_of(value.begin(), value.end(), absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(value, &number) && number >= least && number <= most)
    return number;
  return Bad(
      variable, value, absl::StrCat("expected a whole number from ", least, " to ", most),
      absl::StrCat("set it to such a number", variable == kRank ? " below PSD_GROUP_SIZE" : "",
                   ", or start the program with psctl run"));
}

absl::StatusOr<OwnerAddress> ParseOwner(const char* variable, absl::string_view value,
                                        absl::string_view part) {
  const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
  absl::Status parsed = CheckWorkerName(pair.first);
  if (parsed.ok()) parsed = ParseHostPortToDial(pair.second).status();
  if (parsed.ok()) return OwnerAddress{pair.first, pair.second};
  return Bad(variable, value, parsed.message(),
             absl::StrCat("set it to name=host:port, such as owner0=10.0.0.5:7071",
                          variable == kOwners ? ", with commas between several" : ""));
}

absl::Status ReadOwners(std::vector<OwnerAddress>* owners) {
  const std::optional<std::string> value = Read(kOwners);
  if (!value.has_value()) return absl::OkStatus();
  for (absl::string_view part : absl::StrSplit(*value, ',')) {
    PSD_ASSIGN_OR_RETURN(OwnerAddress owner, ParseOwner(kOwners, *value, part));
    for (const OwnerAddress& other : *owners) {
      if (other.name == owner.name)
        return Bad(kOwners, *value, absl::StrCat(owner.name, " is named twice"),
                   "name each owner once");
    }
    owners->push_back(std::move(owner));
  }
  return absl::OkStatus();
}

// Puts the registrar in front of the owners, unless it is one of them.
absl::Status ReadRegistrar(std::vector<OwnerAddress>* owners) {
  const std::optional<std::string> value = Read(kRegistrar);
  if (!value.has_value()) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(OwnerAddress registrar, ParseOwner(kRegistrar, *value, *value));
  for (const OwnerAddress& owner : *owners) {
    if (owner.name != registrar.name) continue;
    if (owner.address == registrar.address) return absl::OkStatus();
    return Bad(kRegistrar, *value,
               absl::StrCat(kOwners, " gives ", owner.name, " the address ", owner.address),
               "give it the same address in both");
  }
  owners->insert(owners->begin(), std::move(registrar));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerOptions> WorkerOptions::FromEnvironment() {
  WorkerOptions options;
  const std::optional<std::string> name = Read(kName);
  if (!name.has_value()) {
    return NotSet("PSD_NAME is",
                  "start the program with psctl run, or set PSD_NAME to this worker's name");
  }
  if (!CheckWorkerName(*name).ok()) {
    return Bad(kName, *name, absl::StrCat("a worker's name has ", kWorkerNameRule),
               "set it to such a name, unique in the job");
  }
  options.name = *name;
  if (const auto size = Read(kGroupSize); size.has_value()) {
    PSD_ASSIGN_OR_RETURN(options.group_size, ReadNumber(kGroupSize, *size, 1, kMostTrainers));
  }
  if (const auto rank = Read(kRank); rank.has_value()) {
    if (options.group_size == 0) {
      return NotSet(absl::StrCat(kRank, " is ", Quoted(*rank), ", but ", kGroupSize, " is"),
                    "set PSD_GROUP_SIZE to the number of trainers of the job");
    }
    PSD_ASSIGN_OR_RETURN(options.group_rank, ReadNumber(kRank, *rank, 0, options.group_size - 1));
  }
  options.shared_memory_folder = Read(kSharedFolder).value_or("");
  if (!CheckSharedFolder(options.shared_memory_folder).ok()) {
    return Bad(kSharedFolder, options.shared_memory_folder,
               absl::StrCat("expected an absolute path of at most ", kMaxSharedFolderBytes,
                            " bytes without control characters"),
               "set it to the folder that the workers of this host share, or unset it");
  }
  PSD_RETURN_IF_ERROR(ReadOwners(&options.owners));
  PSD_RETURN_IF_ERROR(ReadRegistrar(&options.owners));
  if (options.owners.empty()) {
    return NotSet("PSD_OWNERS and PSD_REGISTRAR are",
                  "start the program with psctl run, or set one of them to name=host:port");
  }
  return options;
}

}  // namespace psd
