// Trainers on one owner, each taking the small train step in its own process, by the CPU time of
// all processes.
//   trainers_<n>: n trainers, per step. Floor: one trainer works, the others are idle.
//   trainers_idle: one trainer, per second in which it does nothing after its steps.

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/job.h"
#include "bench/process.h"
#include "bench/server.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

constexpr int kSteps = 120;  // of all trainers together, in a block
constexpr absl::Duration kTimeout = absl::Seconds(60);
// After the first of these, both have stopped looking for messages, and freed what they had kept
// for later steps.
constexpr absl::Duration kSettling = absl::Seconds(5);
constexpr absl::Duration kIdle = absl::Seconds(5);

class Trainers : public Workload {
 public:
  explicit Trainers(int trainers) : count_(trainers) {}

  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(owner_, StartOwner(environment));
    for (int i = 0; i < count_; ++i) {
      PSD_ASSIGN_OR_RETURN(
          auto trainer, Process::Start({environment.helper, "trainer", absl::StrCat("trainer", i),
                                        owner_->address()}));
      trainers_.push_back(std::move(trainer));
      PSD_RETURN_IF_ERROR(Expect(*trainers_.back(), "ready"));
    }
    return RunSteps(count_).status();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    PSD_ASSIGN_OR_RETURN(const double cpu_seconds, RunSteps(count_));
    return std::vector<double>{cpu_seconds};
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const double cpu_seconds, RunSteps(1));
    return cpu_seconds;
  }

 protected:
  absl::StatusOr<double> CpuSeconds() const {
    PSD_ASSIGN_OR_RETURN(double sum, owner_->process().CpuSeconds());
    for (const auto& trainer : trainers_) {
      PSD_ASSIGN_OR_RETURN(const double seconds, trainer->CpuSeconds());
      sum += seconds;
    }
    return sum;
  }

  // Returns the CPU seconds per step when the first `active` trainers share the steps.
  absl::StatusOr<double> RunSteps(int active) {
    const int each = kSteps / active;
    PSD_ASSIGN_OR_RETURN(const double before, CpuSeconds());
    for (int i = 0; i < active; ++i) {
      PSD_RETURN_IF_ERROR(trainers_[static_cast<size_t>(i)]->WriteLine(absl::StrCat(each)));
    }
    for (int i = 0; i < active; ++i) {
      PSD_RETURN_IF_ERROR(Expect(*trainers_[static_cast<size_t>(i)], "done"));
    }
    PSD_ASSIGN_OR_RETURN(const double after, CpuSeconds());
    return (after - before) / (each * active);
  }

 private:
  static absl::Status Expect(Process& trainer, absl::string_view wanted) {
    PSD_ASSIGN_OR_RETURN(const std::string line, trainer.ReadLine(kTimeout));
    if (line == wanted) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("a trainer said: ", line));
  }

  const int count_;
  std::unique_ptr<Server> owner_;  // ends after the trainers
  std::vector<std::unique_ptr<Process>> trainers_;
};

class IdleTrainer : public Trainers {
 public:
  IdleTrainer() : Trainers(1) {}

  absl::StatusOr<std::vector<double>> RunPsd() override {
    PSD_RETURN_IF_ERROR(RunSteps(1).status());
    absl::SleepFor(kSettling);
    PSD_ASSIGN_OR_RETURN(const double before, CpuSeconds());
    absl::SleepFor(kIdle);
    PSD_ASSIGN_OR_RETURN(const double after, CpuSeconds());
    return std::vector<double>{(after - before) / absl::ToDoubleSeconds(kIdle)};
  }

  absl::StatusOr<std::optional<double>> RunFloor() override { return std::nullopt; }
};

}  // namespace

std::vector<Case> TrainerCases() {
  std::vector<Case> cases;
  for (int trainers : {1, 2, 4}) {
    Case one;
    one.name = absl::StrCat("trainers_", trainers);
    one.unit = {"CPU ms/step", 1e3};
    one.has_peer = false;
    one.make = [trainers] { return std::make_unique<Trainers>(trainers); };
    cases.push_back(std::move(one));
  }
  Case idle;
  idle.name = "trainers_idle";
  idle.unit = {"% of a core", 1e2};
  idle.has_peer = false;
  idle.blocks = 3;
  idle.make = [] { return std::make_unique<IdleTrainer>(); };
  cases.push_back(std::move(idle));
  return cases;
}

}  // namespace psd::bench
