#include "core/optim/owner/optimizer_life.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace psd::optim {
namespace {

constexpr absl::string_view kRemedy =
    "bring back what is missing with `psctl load --only-missing DIR` (LoadOptions::only_missing), "
    "or begin the optimizer afresh on purpose (JoinOptions::start_afresh)";

constexpr absl::string_view kRestarted =
    "was restarted and has lost its parameters and their state";

// The error for an optimizer of which `owner` lacks its part, or has one that fits no other.
absl::Status HalfOptimizer(const std::string& name, const std::string& owner,
                           absl::string_view problem) {
  ErrorDetail detail;
  detail.worker = owner;
  detail.object = name;
  detail.remedy = std::string(kRemedy);
  return WithDetail(
      absl::FailedPreconditionError(absl::StrCat(
          "only a part of optimizer '", name, "' is left: ", owner, " ", problem, "; ", kRemedy)),
      detail);
}

std::string Part(const PartReport& report) {
  return absl::StrCat(report.owner.name, "'s part, of ", report.steps, " steps");
}

// Whether the part of `owner` that `report` (null: nobody was asked) tells of is the one that
// `part` knows.
absl::Status CheckOther(const std::string& name, const PartReport& part, const LifeOwner& owner,
                        const PartReport* report, bool may_be_missing) {
  const auto half = [&](absl::string_view problem) {
    return HalfOptimizer(name, owner.name, absl::StrCat(problem, ", beside ", Part(part)));
  };
  if (report == nullptr) return half("is not among the owners of this job");
  if (report->owner.incarnation != owner.incarnation) return half(kRestarted);
  if (!report->hosted) return may_be_missing ? absl::OkStatus() : half("has no part of it");
  if (report->life.id == part.life.id) return absl::OkStatus();
  return half(absl::StrCat("has a part of ", report->steps, " steps, of another life"));
}

absl::Status CheckParts(const std::string& name, absl::Span<const PartReport> reports,
                        bool may_be_missing) {
  for (const PartReport& part : reports) {
    if (!part.hosted) continue;
    if (part.life.owners.empty())
      return HalfOptimizer(name, part.owner.name, "has a part whose load has not finished");
    for (const LifeOwner& owner : part.life.owners) {
      const PartReport* report = FindReport(reports, owner.name);
      PSD_RETURN_IF_ERROR(CheckOther(name, part, owner, report, may_be_missing));
    }
  }
  return absl::OkStatus();
}

// Sorted.
template <typename Items, typename NameOf>
std::vector<std::string> Names(const Items& items, NameOf name_of) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(name_of(item));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status CheckOwners(const std::string& name, absl::Span<const PartReport> reports) {
  const auto given = Names(reports, [](const PartReport& each) { return each.owner.name; });
  for (const PartReport& part : reports) {
    if (!part.hosted) continue;
    const auto known = Names(part.life.owners, [](const LifeOwner& each) { return each.name; });
    if (known == given) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer '", name, "' was created over parameters on ",
                     absl::StrJoin(known, ", "), ", and these are on ", absl::StrJoin(given, ", "),
                     "; give the same parameters, or another name"));
  }
  return absl::OkStatus();
}

}  // namespace

const PartReport* FindReport(absl::Span<const PartReport> reports, const std::string& name) {
  for (const PartReport& report : reports)
    if (report.owner.name == name) return &report;
  return nullptr;
}

absl::Status CheckWhole(const std::string& name, absl::Span<const PartReport> reports) {
  return CheckParts(name, reports, /*may_be_missing=*/false);
}

absl::StatusOr<GlobalId> LifeToJoin(const std::string& name, absl::Span<const PartReport> reports) {
  const bool stepped = std::any_of(reports.begin(), reports.end(),
                                   [](const PartReport& each) { return each.steps > 0; });
  PSD_RETURN_IF_ERROR(CheckParts(name, reports, /*may_be_missing=*/!stepped));
  PSD_RETURN_IF_ERROR(CheckOwners(name, reports));
  for (const PartReport& part : reports)
    if (part.hosted) return part.life.id;
  return GlobalId{};
}

absl::Status CheckLife(GlobalId expected, const OptimizerLife& now) {
  if (expected.IsNone() || expected == now.id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the optimizer was loaded or begun afresh since this trainer created it; pull the parameters "
      "and create the DistributedOptimizer again");
}

absl::Status RestartedOwner(const std::string& name, const std::string& owner) {
  return HalfOptimizer(name, owner, kRestarted);
}

}  // namespace psd::optim
