// pull_<size>: pull a tensor and read it once. Floor: the same number of bytes over a bare TCP
// connection into memory that is warm, read once. Through shared memory nothing has to move, so the
// floor is reading as many bytes once.

#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/floors.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/wire_floors.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

class Pull : public Workload {
 public:
  Pull(size_t bytes, int pulls) : bytes_(bytes), pulls_(pulls) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    const auto elements = static_cast<int64_t>(bytes_ / sizeof(float));
    PSD_ASSIGN_OR_RETURN(RRef tensor, job_->worker().GetOrCreate(
                                          kOwner, "pulled", Uniform({elements}, -0.1, 0.1, 1)));
    rrefs_.push_back(std::move(tensor));
    PSD_RETURN_IF_ERROR(PullOnce());
    if (environment.carrier == "shm") {
      memory_ = std::make_unique<MappedFloats>(bytes_ / sizeof(float));
    } else {
      PSD_ASSIGN_OR_RETURN(tcp_, TcpFloor::Start(environment, bytes_));
    }
    return FloorOnce();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(pulls_, [this] { return PullOnce(); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(pulls_, [this] { return FloorOnce(); }));
    return Median(seconds);
  }

 private:
  absl::Status PullOnce() {
    PSD_ASSIGN_OR_RETURN(const Values values, job_->worker().ToHere(rrefs_));
    const auto* tensor = values[0].As<Variable>();
    if (tensor == nullptr || tensor->tensor().NumBytes() != bytes_) {
      return absl::InternalError("pulled something else");
    }
    Consume(StreamRead(tensor->tensor().data<float>(), bytes_ / sizeof(float)));
    return absl::OkStatus();
  }

  absl::Status FloorOnce() {
    if (tcp_ != nullptr) return tcp_->Pull(bytes_);
    Consume(StreamRead(memory_->data(), memory_->size()));
    return absl::OkStatus();
  }

  const size_t bytes_;
  const int pulls_;  // in a block
  std::unique_ptr<Job> job_;
  std::vector<RRef> rrefs_;
  std::unique_ptr<TcpFloor> tcp_;         // null for shared memory
  std::unique_ptr<MappedFloats> memory_;  // null otherwise
};

Case PullCase(int mebibytes, int pulls) {
  const size_t bytes = static_cast<size_t>(mebibytes) << 20;
  Case one;
  one.name = absl::StrCat("pull_", mebibytes, "MiB");
  one.unit = {"GB/s", static_cast<double>(bytes) / 1e9, /*rate=*/true};
  one.make = [bytes, pulls] { return std::make_unique<Pull>(bytes, pulls); };
  return one;
}

}  // namespace

std::vector<Case> PullCases() {
  return {PullCase(16, 20), PullCase(256, 3)};
}

}  // namespace psd::bench
