// rrefs_1M: the memory that an owner takes for each of a million anonymous RRefs to values of no
// bytes. rrefs_1M_release: an empty call while a million RRefs are released; the 99th percentile is
// the cost. Floor: the same call while they are only held.

#include <optional>
#include <thread>
#include <utility>

#include "bench/job.h"
#include "bench/stats.h"
#include "bench/workloads/cases.h"
#include "core/rref/rref_context.h"
#include "core/runtime/runtime.h"

namespace psd::bench {
namespace {

constexpr size_t kReferences = 1'000'000;
constexpr size_t kCreationsInFlight = 512;
constexpr int kIdleCalls = 4000;
constexpr double kTail = 0.99;

class References : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    for (int i = 0; i < 200; ++i) PSD_RETURN_IF_ERROR(CallOnce());
    return absl::OkStatus();
  }

 protected:
  Job& job() { return *job_; }

  absl::Status CallOnce() { return job_->worker().RpcSync(kOwner, empty_, {}).status(); }

  // The empty program leaves a value of no bytes.
  absl::StatusOr<std::vector<RRef>> Create() {
    std::vector<RRef> references;
    references.reserve(kReferences);
    while (references.size() < kReferences) {
      PSD_ASSIGN_OR_RETURN(RRef reference, job_->worker().Remote(kOwner, empty_, {}));
      references.push_back(std::move(reference));
      if (references.size() <= kCreationsInFlight) continue;
      const RRef& oldest = references[references.size() - 1 - kCreationsInFlight];
      PSD_RETURN_IF_ERROR(oldest.confirmed().Wait().status());
    }
    for (size_t i = kReferences - kCreationsInFlight; i < kReferences; ++i) {
      PSD_RETURN_IF_ERROR(references[i].confirmed().Wait().status());
    }
    return references;
  }

 private:
  const Function empty_{Program{}};
  std::unique_ptr<Job> job_;
};

class ReferenceBytes : public References {
 public:
  absl::StatusOr<std::vector<double>> RunPsd() override {
    PSD_ASSIGN_OR_RETURN(const size_t idle, job().owner().ResidentBytes());
    PSD_ASSIGN_OR_RETURN(const std::vector<RRef> references, Create());
    PSD_ASSIGN_OR_RETURN(const size_t used, job().owner().ResidentBytes());
    return std::vector<double>{(static_cast<double>(used) - static_cast<double>(idle)) /
                               kReferences};
  }
  absl::StatusOr<std::optional<double>> RunFloor() override { return std::optional<double>(); }
};

class ReferenceRelease : public References {
 public:
  absl::StatusOr<std::vector<double>> RunPsd() override {
    PSD_ASSIGN_OR_RETURN(std::vector<RRef> references, Create());
    PSD_ASSIGN_OR_RETURN(const std::vector<double> idle,
                         TimeEach(kIdleCalls, [this] { return CallOnce(); }));
    idle_tail_ = Quantile(idle, kTail);
    std::thread release([&references] { references.clear(); });
    absl::StatusOr<std::vector<double>> busy = CallWhileReleasing();
    release.join();
    if (!busy.ok()) return busy.status();
    return std::vector<double>{Quantile(*busy, kTail)};
  }
  absl::StatusOr<std::optional<double>> RunFloor() override { return idle_tail_; }

 private:
  absl::StatusOr<std::vector<double>> CallWhileReleasing() {
    std::vector<double> seconds;
    while (true) {
      const ReferenceCounts counts = job().worker().ReferenceStats();
      if (counts.held + counts.releases == 0) return seconds;
      PSD_ASSIGN_OR_RETURN(const std::vector<double> one,
                           TimeEach(1, [this] { return CallOnce(); }));
      seconds.push_back(one[0]);
    }
  }

  std::optional<double> idle_tail_;
};

}  // namespace

std::vector<Case> ReferenceCases() {
  Case bytes;
  bytes.name = "rrefs_1M";
  bytes.unit = {"B each", 1};
  bytes.has_peer = false;
  bytes.blocks = 1;
  bytes.make = [] { return std::make_unique<ReferenceBytes>(); };
  Case release = bytes;
  release.name = "rrefs_1M_release";
  release.unit = {"us", 1e6};
  release.make = [] { return std::make_unique<ReferenceRelease>(); };
  return {bytes, release};
}

}  // namespace psd::bench
