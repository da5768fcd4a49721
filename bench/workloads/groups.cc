// allreduce_<size>_<n>: an all-reduce of n ranks, each in its own process. ddp_step_<n>: a step of
// n ranks with replicas: forward, backward, the mean of the gradients over the ranks, Adam on every
// rank. 16 parameters of a million floats. ddp_small_<n>: the same with 1,000 parameters of 256
// floats, whose gradients travel in one all-reduce. zero_step_<n>: a step of Adam over 16
// parameters of a million floats, whose state n ranks share. Floors: see GroupFloor.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/group_floors.h"
#include "bench/job.h"
#include "bench/process.h"
#include "bench/rank_work.h"
#include "bench/stats.h"
#include "bench/workloads/cases.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// The work of the ranks of a case, and how often it is done in a block.
struct Task {
  std::string name;  // see RankOptions
  int tensors = 1;
  int64_t elements = 0;
  int runs = 0;
};

class Ranks : public Workload {
 public:
  Ranks(int ranks, Task task) : ranks_(ranks), task_(std::move(task)) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    RankOptions options;
    options.ranks = ranks_;
    options.owner = job_->address();
    options.shared_memory = environment.carrier == "shm";
    options.task = task_.name;
    options.tensors = task_.tensors;
    options.elements = task_.elements;
    for (int rank = 1; rank < ranks_; ++rank) {
      PSD_ASSIGN_OR_RETURN(
          auto helper,
          Process::Start({environment.helper, "rank", absl::StrCat(rank), absl::StrCat(ranks_),
                          options.owner, environment.carrier, task_.name,
                          absl::StrCat(task_.tensors), absl::StrCat(task_.elements)}));
      helpers_.push_back(std::move(helper));
    }
    PSD_ASSIGN_OR_RETURN(work_, RankWork::Join(options));
    const auto elements = static_cast<size_t>(task_.elements * task_.tensors);
    const std::string way = environment.carrier == "shm" ? "memory" : environment.floor;
    PSD_ASSIGN_OR_RETURN(floor_, GroupFloor::Create(task_.name, way, ranks_, elements));
    return RunPsd().status();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    for (const auto& helper : helpers_)
      PSD_RETURN_IF_ERROR(helper->WriteLine(absl::StrCat(task_.runs)));
    PSD_ASSIGN_OR_RETURN(std::vector<double> seconds,
                         TimeEach(task_.runs, [this] { return work_->Run(); }));
    for (const auto& helper : helpers_) {
      PSD_ASSIGN_OR_RETURN(const std::string line, helper->ReadLine(kTimeout));
      if (line != "done") return absl::InternalError(absl::StrCat("a rank said: ", line));
    }
    return seconds;
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    return Median(floor_->Run(task_.runs));
  }

 private:
  const int ranks_;
  const Task task_;
  std::unique_ptr<GroupFloor> floor_;
  std::unique_ptr<Job> job_;
  std::vector<std::unique_ptr<Process>> helpers_;
  std::unique_ptr<RankWork> work_;  // leaves before the helpers end
};

Case MakeCase(const std::string& name, int ranks, const Unit& unit, const Task& task) {
  Case one;
  one.name = absl::StrCat(name, "_", ranks);
  one.unit = unit;
  one.peer_needs_tcp = true;
  one.make = [ranks, task] { return std::make_unique<Ranks>(ranks, task); };
  return one;
}

}  // namespace

std::vector<Case> GroupCases() {
  const Unit us = {"us", 1e6}, ms = {"ms", 1e3};
  std::vector<Case> cases;
  for (const int ranks : {2, 4}) {
    cases.push_back(MakeCase("allreduce_1KiB", ranks, us, {"allreduce", 1, 256, 200}));
    cases.push_back(MakeCase("allreduce_1MiB", ranks, ms, {"allreduce", 1, 256 << 10, 30}));
    cases.push_back(MakeCase("allreduce_64MiB", ranks, ms, {"allreduce", 1, 16 << 20, 4}));
    cases.push_back(MakeCase("ddp_step", ranks, ms, {"ddp_step", 16, 1'000'000, 3}));
    cases.push_back(MakeCase("ddp_small", ranks, ms, {"ddp_step", 1000, 256, 5}));
    cases.push_back(MakeCase("zero_step", ranks, ms, {"zero_step", 16, 1'000'000, 4}));
  }
  return cases;
}

}  // namespace psd::bench
