// psctl run: runs a program as the ranks of a job on this machine.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/host_port.h"
#include "core/base/quoted.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "tools/cli/command.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/job.h"
#include "tools/cli/launcher.h"
#include "tools/cli/psd_program.h"

namespace psd::cli {
namespace {

constexpr int kMostRanks = 256;
constexpr int kMostRestarts = 1'000'000;
constexpr absl::Duration kDefaultGrace = absl::Seconds(10);
constexpr absl::Duration kMostGrace = absl::Hours(24);

absl::Status ParseCount(const std::string& flag, const std::string& text, int least, int most,
                        int* count) {
  if (text.empty()) return absl::OkStatus();
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(text, count) && *count >= least && *count <= most)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": expected a whole number from ", least,
                                                 " to ", most, ", got ", Quoted(text)));
}

absl::Status ParseGrace(const std::string& text, absl::Duration* grace) {
  if (text.empty()) return absl::OkStatus();
  if (absl::ParseDuration(text, grace) && *grace >= absl::ZeroDuration() && *grace <= kMostGrace)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--grace: expected a time such as 10s, at most 24h, got ", Quoted(text)));
}

absl::Status CheckOwners(const std::string& owners) {
  if (owners.empty()) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(const auto pairs, ParsePairs("--owner", owners));
  for (const auto& [name, address] : pairs) {
    PSD_RETURN_IF_ERROR(Annotate(CheckWorkerName(name), "--owner"));
    PSD_RETURN_IF_ERROR(Annotate(ParseHostPortToDial(address).status(),
                                 absl::StrCat("--owner: the address of ", name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobSpec> MakeJob(const Options& options, const std::vector<std::string>& program) {
  JobSpec job;
  job.command = program;
  job.owners = options.owner;
  job.grace = kDefaultGrace;
  job.psd = FindPsd();
  if (!options.name.empty()) job.name_prefix = options.name;
  PSD_RETURN_IF_ERROR(ParseCount("-n", options.ranks, 1, kMostRanks, &job.ranks));
  PSD_RETURN_IF_ERROR(ParseCount("--restarts", options.restarts, 0, kMostRestarts, &job.restarts));
  PSD_RETURN_IF_ERROR(ParseGrace(options.grace, &job.grace));
  PSD_RETURN_IF_ERROR(CheckOwners(job.owners));
  PSD_RETURN_IF_ERROR(
      Annotate(CheckWorkerName(absl::StrCat(job.name_prefix, job.ranks - 1)), "--name"));
  return job;
}

}  // namespace

absl::Status RunRanks(const Options& options, const std::vector<std::string>& arguments) {
  auto job = MakeJob(options, arguments);
  if (!job.ok()) return WithExitCode(job.status(), kExitUsage);
  return Launcher(*std::move(job)).Run();
}

}  // namespace psd::cli
