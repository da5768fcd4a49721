// call_empty: an empty call, one at a time.
// call_parked: the same with a pause of 1 ms after each, so that both ends sleep when it comes.
// call_64: empty calls, 64 in flight; the oldest is waited for before the next one starts.
// The call runs the empty program. Floor: a bare gRPC unary echo.

#include <deque>
#include <functional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/wire_floors.h"
#include "bench/workloads/cases.h"
#include "core/base/clock.h"
#include "core/base/future.h"

namespace psd::bench {
namespace {

constexpr int kSingleCalls = 1000;
constexpr int kParkedCalls = 200;
constexpr int kManyCalls = 6000;
constexpr int kInFlight = 64;

class CallWorkload : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    PSD_ASSIGN_OR_RETURN(floor_, EchoFloor::Start(environment));
    for (int i = 0; i < 200; ++i) {
      PSD_RETURN_IF_ERROR(CallOnce());
      PSD_RETURN_IF_ERROR(floor_->Call());
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status CallOnce() { return job_->worker().RpcSync(kOwner, empty_, {}).status(); }

  const Function empty_{Program{}};
  std::unique_ptr<Job> job_;
  std::unique_ptr<EchoFloor> floor_;
};

class CallEmpty : public CallWorkload {
 public:
  // `pause` is the time between two calls.
  explicit CallEmpty(absl::Duration pause) : pause_(pause) {}

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeCalls([this] { return CallOnce(); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeCalls([this] { return floor_->Call(); }));
    return Median(seconds);
  }

 private:
  absl::StatusOr<std::vector<double>> TimeCalls(const std::function<absl::Status()>& call) const {
    if (pause_ == absl::ZeroDuration()) return TimeEach(kSingleCalls, call);
    std::vector<double> all;
    for (int i = 0; i < kParkedCalls; ++i) {
      absl::SleepFor(pause_);
      PSD_ASSIGN_OR_RETURN(const std::vector<double> one, TimeEach(1, call));
      all.push_back(one[0]);
    }
    return all;
  }

  const absl::Duration pause_;
};

class Call64 : public CallWorkload {
 public:
  absl::StatusOr<std::vector<double>> RunPsd() override {
    return PerCall([this] { return CallMany(); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         PerCall([this] { return floor_->CallMany(kManyCalls, kInFlight); }));
    return seconds[0];
  }

 private:
  absl::Status CallMany() {
    std::deque<Future<Values>> pending;
    for (int i = 0; i < kManyCalls; ++i) {
      pending.push_back(job_->worker().RpcAsync(kOwner, empty_, {}));
      if (pending.size() < size_t{kInFlight}) continue;
      PSD_RETURN_IF_ERROR(pending.front().Wait().status());
      pending.pop_front();
    }
    for (; !pending.empty(); pending.pop_front())
      PSD_RETURN_IF_ERROR(pending.front().Wait().status());
    return absl::OkStatus();
  }

  // Runs kManyCalls calls by `all`, and returns their mean time.
  static absl::StatusOr<std::vector<double>> PerCall(const std::function<absl::Status()>& all) {
    PSD_ASSIGN_OR_RETURN(std::vector<double> seconds, TimeEach(1, all));
    seconds[0] /= kManyCalls;
    return seconds;
  }
};

}  // namespace

std::vector<Case> CallCases() {
  Case empty;
  empty.name = "call_empty";
  empty.unit = {"us", 1e6};
  empty.latency = true;
  empty.make = [] { return std::make_unique<CallEmpty>(absl::ZeroDuration()); };
  Case parked = empty;
  parked.name = "call_parked";
  parked.make = [] { return std::make_unique<CallEmpty>(absl::Milliseconds(1)); };
  Case many = empty;
  many.name = "call_64";
  many.unit = {"calls/s", 1, /*rate=*/true};
  many.latency = false;
  many.make = [] { return std::make_unique<Call64>(); };
  return {empty, parked, many};
}

}  // namespace psd::bench
