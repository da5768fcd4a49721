// memory: the memory that an owner of 1 GiB of parameters with Adam takes at rest, minus the memory
// that it took when idle. Floor: two versions of every parameter and the optimizer's state.
// memory_dropped: the memory that is left after everything was dropped.

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/job.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

constexpr int kParameters = 16;
constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB each
constexpr double kParameterBytes = double{kParameters} * double{kElements} * sizeof(float);
constexpr char kOptimizer[] = "memory/optimizer";

class Memory : public Workload {
 public:
  explicit Memory(bool dropped) : dropped_(dropped) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    PSD_ASSIGN_OR_RETURN(const size_t idle, job_->owner().ResidentBytes());
    PSD_RETURN_IF_ERROR(Fill());
    if (dropped_) PSD_RETURN_IF_ERROR(Drop());
    PSD_ASSIGN_OR_RETURN(const size_t used, ResidentAtRest());
    return std::vector<double>{static_cast<double>(used) - static_cast<double>(idle)};
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    if (dropped_) return std::optional<double>();
    constexpr int kVersions = 2;
    constexpr int kStateSlots = 2;
    return kParameterBytes * (kVersions + kStateSlots);
  }

 private:
  // Steps every parameter once, one at a time, so that all memory has been touched.
  absl::Status Fill() {
    Worker& worker = job_->worker();
    PSD_ASSIGN_OR_RETURN(const std::vector<RRef> parameters,
                         CreateParameters(worker, "memory/p", kParameters, kElements));
    PSD_ASSIGN_OR_RETURN(const std::unique_ptr<DistributedOptimizer> optimizer,
                         DistributedOptimizer::Create(worker, kOptimizer, Adam{}, parameters));
    for (const RRef& parameter : parameters) {
      PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
      PSD_ASSIGN_OR_RETURN(const std::vector<Variable> values,
                           worker.ToHere(std::vector<RRef>{parameter}, context));
      PSD_RETURN_IF_ERROR(context.Backward({Sum(values[0])}));
      PSD_RETURN_IF_ERROR(optimizer->Step(context));
    }
    return absl::OkStatus();
  }

  // Waits until the number stays the same for a while, because references are released in the
  // background, and freed memory is kept for some seconds.
  absl::StatusOr<size_t> ResidentAtRest() const {
    PSD_ASSIGN_OR_RETURN(size_t bytes, job_->owner().ResidentBytes());
    for (int same = 0; same < 50;) {
      absl::SleepFor(absl::Milliseconds(100));
      PSD_ASSIGN_OR_RETURN(const size_t now, job_->owner().ResidentBytes());
      same = now == bytes ? same + 1 : 0;
      bytes = now;
    }
    return bytes;
  }

  absl::Status Drop() {
    PSD_RETURN_IF_ERROR(job_->worker().Drop(kOwner, kOptimizer));
    for (int i = 0; i < kParameters; ++i) {
      PSD_RETURN_IF_ERROR(job_->worker().Drop(kOwner, absl::StrCat("memory/p", i)));
    }
    return absl::OkStatus();
  }

  const bool dropped_;
  std::unique_ptr<Job> job_;
};

}  // namespace

std::vector<Case> MemoryCases() {
  Case filled;
  filled.name = "memory";
  filled.unit = {"MiB", 1.0 / (1 << 20)};
  filled.has_peer = false;
  filled.blocks = 1;
  filled.make = [] { return std::make_unique<Memory>(/*dropped=*/false); };
  Case dropped = filled;
  dropped.name = "memory_dropped";
  dropped.make = [] { return std::make_unique<Memory>(/*dropped=*/true); };
  return {filled, dropped};
}

}  // namespace psd::bench
