// allreduce_<size>_<n>: an all-reduce of n ranks, each in its own process.
// zero_step_<n>: a step of Adam over 16 parameters of a million floats, whose state n ranks share.

#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/job.h"
#include "bench/rank_work.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

class Ranks : public Workload {
 public:
  // `elements`: see RankOptions; `runs`: in a block.
  Ranks(int ranks, int64_t elements, int runs) : ranks_(ranks), elements_(elements), runs_(runs) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    const bool shared_memory = environment.carrier == "shm";
    for (int rank = 1; rank < ranks_; ++rank) {
      PSD_ASSIGN_OR_RETURN(
          auto helper, Process::Start({environment.helper, "rank", absl::StrCat(rank),
                                       absl::StrCat(ranks_), job_->address(),
                                       shared_memory ? "shm" : "grpc", absl::StrCat(elements_)}));
      helpers_.push_back(std::move(helper));
    }
    PSD_ASSIGN_OR_RETURN(work_,
                         RankWork::Join({0, ranks_, job_->address(), shared_memory, elements_}));
    return RunPsd().status();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    for (const auto& helper : helpers_) PSD_RETURN_IF_ERROR(helper->WriteLine(absl::StrCat(runs_)));
    PSD_ASSIGN_OR_RETURN(std::vector<double> seconds,
                         TimeEach(runs_, [this] { return work_->Run(); }));
    for (const auto& helper : helpers_) {
      PSD_ASSIGN_OR_RETURN(const std::string line, helper->ReadLine(kTimeout));
      if (line != "done") return absl::InternalError(absl::StrCat("a rank said: ", line));
    }
    return seconds;
  }

  absl::StatusOr<std::optional<double>> RunFloor() override { return std::nullopt; }

 private:
  const int ranks_;
  const int64_t elements_;
  const int runs_;
  std::unique_ptr<Job> job_;
  std::vector<std::unique_ptr<Process>> helpers_;
  std::unique_ptr<RankWork> work_;  // leaves before the helpers end
};

Case MakeCase(const std::string& name, int ranks, int64_t elements, int runs, Unit unit) {
  Case one;
  one.name = absl::StrCat(name, "_", ranks);
  one.unit = std::move(unit);
  one.make = [ranks, elements, runs] { return std::make_unique<Ranks>(ranks, elements, runs); };
  return one;
}

}  // namespace

std::vector<Case> GroupCases() {
  std::vector<Case> cases;
  for (const int ranks : {2, 4}) {
    cases.push_back(MakeCase("allreduce_1KiB", ranks, 256, 200, {"us", 1e6}));
    cases.push_back(MakeCase("allreduce_1MiB", ranks, 256 << 10, 30, {"ms", 1e3}));
    cases.push_back(MakeCase("allreduce_64MiB", ranks, 16 << 20, 4, {"ms", 1e3}));
    cases.push_back(MakeCase("zero_step", ranks, 0, 4, {"ms", 1e3}));
  }
  return cases;
}

}  // namespace psd::bench
