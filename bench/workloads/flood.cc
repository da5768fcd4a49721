// step_beside_flood: the small train step while another trainer keeps 64 heavy calls outstanding.
// Floor: the step alone. The inverse of the efficiency says how much slower the step gets.

#include <algorithm>
#include <utility>

#include "bench/job.h"
#include "bench/stats.h"
#include "bench/train_step.h"
#include "bench/workloads/cases.h"
#include "core/base/mutex.h"

namespace psd::bench {
namespace {

constexpr int kSteps = 40;  // in a block
constexpr int kInFlight = 64;
constexpr int64_t kSide = 192;
constexpr int kProducts = 8;  // of matrices, in a heavy call

// Heavy calls, from Start to Stop, each of which starts the next one when it is answered.
class Flood {
 public:
  static absl::StatusOr<std::unique_ptr<Flood>> Create(const std::string& address) {
    PSD_ASSIGN_OR_RETURN(auto trainer, Attach("flooder", address));
    ProgramBuilder builder;
    const ProgramBuilder::Ref matrix = builder.Input();
    ProgramBuilder::Ref x = matrix;
    for (int i = 0; i < kProducts; ++i) x = builder.Call("matmul", {x, matrix});
    PSD_ASSIGN_OR_RETURN(Program program, builder.Build({builder.Call("sum", {x})}));
    PSD_ASSIGN_OR_RETURN(Tensor ones, Tensor::Full({kSide, kSide}, DType::kF32, 1.0 / kSide));
    return std::unique_ptr<Flood>(
        new Flood(std::move(trainer), Function(std::move(program)), Variable(std::move(ones))));
  }
  ~Flood() { Stop().IgnoreError(); }

  void Start() PSD_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      goes_on_ = true;
      under_way_ = kInFlight;
    }
    for (int i = 0; i < kInFlight; ++i) Next();
  }

  // Waits for the calls that are under way, and returns their first error.
  absl::Status Stop() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    goes_on_ = false;
    while (under_way_ > 0) ended_.Wait(mutex_);
    return status_;
  }

 private:
  Flood(std::unique_ptr<Worker> trainer, Function heavy, Variable matrix)
      : trainer_(std::move(trainer)), heavy_(std::move(heavy)), matrix_(std::move(matrix)) {}

  void Next() {
    trainer_->RpcAsync(kOwner, heavy_, {matrix_}).OnReady([this](const absl::StatusOr<Values>& r) {
      if (GoesOn(r.status())) Next();
    });
  }

  bool GoesOn(const absl::Status& status) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    status_.Update(status);
    if (goes_on_ && status.ok()) return true;
    if (--under_way_ == 0) ended_.NotifyAll();
    return false;
  }

  const std::unique_ptr<Worker> trainer_;
  const Function heavy_;
  const Variable matrix_;
  Mutex mutex_;  // leaf
  CondVar ended_;
  bool goes_on_ PSD_GUARDED_BY(mutex_) = false;
  int under_way_ PSD_GUARDED_BY(mutex_) = 0;
  absl::Status status_ PSD_GUARDED_BY(mutex_);
};

class StepBesideFlood : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    PSD_ASSIGN_OR_RETURN(flood_, Flood::Create(job_->address()));
    PSD_ASSIGN_OR_RETURN(step_, TrainStep::Create(job_->worker(), kSmallStep, Sgd{}));
    for (int i = 0; i < 2; ++i) PSD_RETURN_IF_ERROR(step_->Run());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    flood_->Start();
    auto seconds = TimeEach(kSteps, [this] { return step_->Run(); });
    PSD_RETURN_IF_ERROR(flood_->Stop());
    return seconds;
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kSteps, [this] { return step_->Run(); }));
    return Median(seconds);
  }

 private:
  std::unique_ptr<Job> job_;
  std::unique_ptr<Flood> flood_;  // these two end before the job
  std::unique_ptr<TrainStep> step_;
};

}  // namespace

std::vector<Case> FloodCases() {
  Case flood;
  flood.name = "step_beside_flood";
  flood.unit = {"ms", 1e3};
  flood.has_peer = false;
  flood.make = [] { return std::make_unique<StepBesideFlood>(); };
  return {flood};
}

}  // namespace psd::bench
