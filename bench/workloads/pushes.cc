// push_<size>: pass a tensor to a call whose program sums it up, so the owner reads it once. Floor:
// the same number of bytes over a bare TCP connection into memory that is warm, read once there.
// Through shared memory nothing has to move, so the floor is reading as many bytes once.

#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/floors.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/wire_floors.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

absl::StatusOr<Program> SumOfArgument() {
  ProgramBuilder builder;
  const ProgramBuilder::Ref argument = builder.Input();
  return builder.Build({builder.Call("sum", {argument})});
}

class Push : public Workload {
 public:
  Push(size_t bytes, int pushes) : bytes_(bytes), pushes_(pushes) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    PSD_ASSIGN_OR_RETURN(Program sum, SumOfArgument());
    sum_ = std::make_unique<Function>(std::move(sum));
    const auto elements = static_cast<int64_t>(bytes_ / sizeof(float));
    PSD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Full({elements}, DType::kF32, 0.5));
    arguments_.emplace_back(Variable(std::move(tensor)));
    PSD_RETURN_IF_ERROR(PushOnce());
    if (environment.carrier == "shm") {
      memory_ = std::make_unique<MappedFloats>(bytes_ / sizeof(float));
    } else {
      PSD_ASSIGN_OR_RETURN(tcp_, TcpFloor::Start(environment, bytes_));
    }
    return FloorOnce();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(pushes_, [this] { return PushOnce(); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(pushes_, [this] { return FloorOnce(); }));
    return Median(seconds);
  }

 private:
  absl::Status PushOnce() { return job_->worker().RpcSync(kOwner, *sum_, arguments_).status(); }

  absl::Status FloorOnce() {
    if (tcp_ != nullptr) return tcp_->Push(bytes_);
    Consume(StreamRead(memory_->data(), memory_->size()));
    return absl::OkStatus();
  }

  const size_t bytes_;
  const int pushes_;  // in a block
  std::unique_ptr<Job> job_;
  std::unique_ptr<Function> sum_;
  Values arguments_;
  std::unique_ptr<TcpFloor> tcp_;         // null for shared memory
  std::unique_ptr<MappedFloats> memory_;  // null otherwise
};

Case PushCase(int mebibytes, int pushes) {
  const size_t bytes = static_cast<size_t>(mebibytes) << 20;
  Case one;
  one.name = absl::StrCat("push_", mebibytes, "MiB");
  one.unit = {"GB/s", static_cast<double>(bytes) / 1e9, /*rate=*/true};
  one.has_peer = false;
  one.make = [bytes, pushes] { return std::make_unique<Push>(bytes, pushes); };
  return one;
}

}  // namespace

std::vector<Case> PushCases() {
  return {PushCase(16, 20), PushCase(256, 3)};
}

}  // namespace psd::bench
