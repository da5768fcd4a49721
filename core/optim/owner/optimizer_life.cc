#include "core/optim/owner/optimizer_life.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::optim {
namespace {

// The most times that owners are asked before their answers are believed.
constexpr int kLooks = 8;

constexpr absl::string_view kBringBack =
    "bring back what is missing with `psctl load --only-missing DIR` (LoadOptions::only_missing), "
    "or begin the optimizer afresh on purpose (JoinOptions::start_afresh)";
constexpr absl::string_view kLoadAgain =
    "wait for the load, or load again if it was stopped; to begin afresh instead, drop the "
    "optimizer on that owner";
constexpr absl::string_view kFinishLoad =
    "wait for the load, or finish it with `psctl load --only-missing DIR` "
    "(LoadOptions::only_missing) if it was stopped; to begin afresh instead, drop the optimizer on "
    "that owner";
constexpr absl::string_view kAttach =
    "attach it, or leave its values out on purpose with `psctl save --leave_out` "
    "(SaveOptions::leave_out)";
constexpr absl::string_view kFinishCreation =
    "nothing was stepped yet: create the DistributedOptimizer again, which makes what is missing";

constexpr absl::string_view kRestarted =
    "was restarted and has lost its parameters and their state";

absl::Status Unusable(const std::string& name, const std::string& owner, const std::string& problem,
                      absl::string_view remedy) {
  ErrorDetail detail;
  detail.worker = owner;
  detail.object = name;
  detail.remedy = std::string(remedy);
  return WithDetail(absl::FailedPreconditionError(absl::StrCat(problem, "; ", remedy)), detail);
}

// Returns the error for an optimizer whose part on `owner` is missing or does not fit the other
// parts.
absl::Status HalfOptimizer(const std::string& name, const std::string& owner,
                           absl::string_view problem, absl::string_view remedy = kBringBack) {
  return Unusable(
      name, owner,
      absl::StrCat("only a part of optimizer '", name, "' is left: ", owner, " ", problem), remedy);
}

std::string Part(const PartReport& report) {
  return absl::StrCat(report.owner.name, "'s part, of ", report.steps, " steps");
}

// Checks that the owner has the part that `part` expects there. `report` is the owner's report, or
// null if the owner was not asked.
absl::Status CheckOther(const std::string& name, const PartReport& part, const LifeOwner& owner,
                        const PartReport* report, bool may_be_missing) {
  const auto half = [&](absl::string_view problem, absl::string_view remedy = kBringBack) {
    return HalfOptimizer(name, owner.name, absl::StrCat(problem, ", beside ", Part(part)), remedy);
  };
  if (report == nullptr) return half("is not among the owners of this job", kAttach);
  if (report->owner.incarnation != owner.incarnation) return half(kRestarted);
  if (!report->hosted) {
    if (may_be_missing) return absl::OkStatus();
    return half("has no part of it", part.steps == 0 ? kFinishCreation : kBringBack);
  }
  if (report->life.id == part.life.id) return absl::OkStatus();
  return half(absl::StrCat("has a part of ", report->steps, " steps, of another life"));
}

absl::Status CheckLoaded(const std::string& name, absl::Span<const PartReport> reports) {
  for (const PartReport& part : reports) {
    if (!part.hosted || part.life.stage == LifeStage::kLive) continue;
    return Unusable(name, part.owner.name,
                    absl::StrCat("optimizer '", name, "' cannot be used: ", part.owner.name,
                                 " has a part whose load has not finished"),
                    kLoadAgain);
  }
  return absl::OkStatus();
}

absl::Status CheckParts(const std::string& name, absl::Span<const PartReport> reports,
                        bool may_be_missing) {
  for (const PartReport& part : reports) {
    if (!part.hosted) continue;
    for (const LifeOwner& owner : part.life.owners) {
      const PartReport* report = FindReport(reports, owner.name);
      PSD_RETURN_IF_ERROR(CheckOther(name, part, owner, report, may_be_missing));
    }
  }
  return absl::OkStatus();
}

// Returns the names of `items`, sorted.
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
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat(
            "optimizer '", name, "' was created over parameters on ", absl::StrJoin(known, ", "),
            ", and these are on ", absl::StrJoin(given, ", "))),
        "give the same parameters, or another name");
  }
  return absl::OkStatus();
}

// Whether the life's owners are those of the reports, each with its present incarnation.
bool KnowsAllAsTheyAre(const OptimizerLife& life, absl::Span<const PartReport> reports) {
  return life.owners.size() == reports.size() &&
         std::all_of(life.owners.begin(), life.owners.end(), [&](const LifeOwner& owner) {
           const PartReport* report = FindReport(reports, owner.name);
           return report != nullptr && report->owner.incarnation == owner.incarnation;
         });
}

// A load of what is missing gives its life first to the parts that it has loaded, and then to those
// that stay. Returns the error for a load that is between the two, or was stopped there: every
// owner has a part that has been stepped, and only some of the parts have a life with the present
// owners.
absl::Status CheckJoined(const std::string& name, absl::Span<const PartReport> reports) {
  const bool all = std::all_of(reports.begin(), reports.end(), [](const PartReport& each) {
    return each.hosted && each.steps > 0;
  });
  if (!all) return absl::OkStatus();
  const auto loaded = std::find_if(reports.begin(), reports.end(), [&](const PartReport& each) {
    return KnowsAllAsTheyAre(each.life, reports);
  });
  if (loaded == reports.end()) return absl::OkStatus();
  for (const PartReport& part : reports) {
    if (part.life.id == loaded->life.id) continue;
    return Unusable(name, loaded->owner.name,
                    absl::StrCat("optimizer '", name, "' cannot be used: a load has not finished, ",
                                 loaded->owner.name, " has a part of ", loaded->steps,
                                 " steps that does not share its life with ", Part(part)),
                    kFinishLoad);
  }
  return absl::OkStatus();
}

// Whether both looks found the same parts of the same lives; their steps may differ.
bool SameParts(absl::Span<const PartReport> before, absl::Span<const PartReport> now) {
  return std::equal(before.begin(), before.end(), now.begin(), now.end(),
                    [](const PartReport& a, const PartReport& b) {
                      return a.owner.incarnation == b.owner.incarnation && a.hosted == b.hosted &&
                             a.life.id == b.life.id;
                    });
}

}  // namespace

const PartReport* FindReport(absl::Span<const PartReport> reports, const std::string& name) {
  for (const PartReport& report : reports)
    if (report.owner.name == name) return &report;
  return nullptr;
}

absl::Status CheckWhole(const std::string& name, absl::Span<const PartReport> reports) {
  PSD_RETURN_IF_ERROR(CheckLoaded(name, reports));
  return CheckParts(name, reports, /*may_be_missing=*/false);
}

LifeVerdict JudgeLife(const std::string& name, absl::Span<const PartReport> reports) {
  using Kind = LifeVerdict::Kind;
  if (absl::Status loaded = CheckLoaded(name, reports); !loaded.ok())
    return {Kind::kLoading, {}, std::move(loaded)};
  if (absl::Status owners = CheckOwners(name, reports); !owners.ok())
    return {Kind::kOtherOwners, {}, std::move(owners)};
  if (absl::Status joined = CheckJoined(name, reports); !joined.ok())
    return {Kind::kLoading, {}, std::move(joined)};
  const bool stepped = std::any_of(reports.begin(), reports.end(),
                                   [](const PartReport& each) { return each.steps > 0; });
  if (absl::Status whole = CheckParts(name, reports, /*may_be_missing=*/!stepped); !whole.ok())
    return {Kind::kLost, {}, std::move(whole)};
  for (const PartReport& part : reports)
    if (part.hosted) return {Kind::kJoin, part.life.id, {}};
  return {};
}

absl::StatusOr<LifeLook> LookAtLife(
    const std::string& name, absl::FunctionRef<absl::StatusOr<std::vector<PartReport>>()> ask) {
  std::vector<PartReport> before;
  for (int looks = 0; looks < kLooks; ++looks) {
    PSD_ASSIGN_OR_RETURN(std::vector<PartReport> reports, ask());
    LifeVerdict verdict = JudgeLife(name, reports);
    if (verdict.kind == LifeVerdict::Kind::kJoin || SameParts(before, reports))
      return LifeLook{std::move(reports), std::move(verdict)};
    before = std::move(reports);
  }
  return WithRemedy(absl::UnavailableError(absl::StrCat("the parts of optimizer '", name,
                                                        "' changed each of the ", kLooks,
                                                        " times that its owners were asked")),
                    "try again");
}

absl::Status CheckLife(GlobalId expected, const OptimizerLife& now) {
  if (now.stage == LifeStage::kLoading) {
    return WithRemedy(absl::FailedPreconditionError("a load of the optimizer has not finished"),
                      "when it has, pull the parameters and create the optimizer again");
  }
  const bool same = expected.IsNone() || expected == now.id;
  if (now.stage == LifeStage::kLive && same) return absl::OkStatus();
  return WithRemedy(
      absl::FailedPreconditionError(
          "the optimizer was dropped, loaded or begun afresh since this trainer created it"),
      "pull the parameters and create the optimizer again");
}

absl::Status CheckLoad(GlobalId load, const OptimizerLife& now) {
  const bool same = load.IsNone() || load == now.id;
  if (same && (now.stage == LifeStage::kLoading || load.IsNone())) return absl::OkStatus();
  return WithRemedy(
      absl::FailedPreconditionError("another load of the optimizer has begun, or it was dropped, "
                                    "since this load began"),
      "wait for the other load, and load again if it was stopped");
}

absl::Status RestartedOwner(const std::string& name, const std::string& owner) {
  return HalfOptimizer(name, owner, kRestarted);
}

}  // namespace psd::optim
