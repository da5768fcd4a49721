// gpu_allreduce: an all-reduce of 64 MiB by one rank for each device, all of them workers of this
// process, as rank 0 sees it. Floor: each device copies as many bytes to the next one as it must
// receive in a reduce-scatter and an all-gather.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "bench/gpu/cases.h"
#include "bench/gpu/device_job.h"
#include "bench/gpu/on_device.h"
#include "bench/job.h"
#include "client/collectives/group.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"

namespace psd::bench {
namespace {

class AllReduce : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    devices_ = environment.devices;
    elements_ = SizeOn<int64_t>(*devices_[0], 16 << 20, 3001);
    PSD_RETURN_IF_ERROR(StartRanks(environment));
    PSD_RETURN_IF_ERROR(StartFloor());
    std::vector<Tensor> sums(ranks_.size());
    PSD_RETURN_IF_ERROR(OnAllRanks([&](size_t rank) -> absl::Status {
      PSD_ASSIGN_OR_RETURN(ranks_[rank].group,
                           Group::Join(*ranks_[rank].worker, "ranks", members_));
      PSD_ASSIGN_OR_RETURN(sums[rank], ranks_[rank].group->AllReduce(ranks_[rank].input));
      return absl::OkStatus();
    }));
    return Check(sums);
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    std::vector<double> seconds;
    PSD_RETURN_IF_ERROR(OnAllRanks([&](size_t rank) -> absl::Status {
      const Rank& one = ranks_[rank];
      PSD_ASSIGN_OR_RETURN(std::vector<double> times, TimeEach(Runs(), [&one] {
                             return one.group->AllReduce(one.input).status();
                           }));
      if (rank == 0) seconds = std::move(times);
      return absl::OkStatus();
    }));
    return seconds;
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    const Clock& clock = Clock::Steady();
    const absl::Time start = clock.Now();
    for (int i = 0; i < Runs(); ++i) PSD_RETURN_IF_ERROR(AddCopies());
    for (const auto& device : devices_) PSD_RETURN_IF_ERROR(device->Synchronize());
    return absl::ToDoubleSeconds(clock.Now() - start) / Runs();
  }

 private:
  struct Rank {
    std::unique_ptr<Worker> worker;
    std::shared_ptr<Group> group;  // ends before the worker
    Tensor input;
    std::shared_ptr<Block> from, to;  // of the floor
  };

  int Runs() const { return SizeOn(*devices_[0], 10, 2); }

  absl::Status StartRanks(const Environment& environment) {
    server::DaemonConfig config;
    config.name = kOwner;
    config.listen = "127.0.0.1:0";
    PSD_ASSIGN_OR_RETURN(registrar_, server::Server::Create(config, {}, NewNullLogger()));
    PSD_ASSIGN_OR_RETURN(const std::string address, registrar_->Start());
    for (size_t i = 0; i < devices_.size(); ++i) {
      Rank& rank = ranks_.emplace_back();
      const std::string name = absl::StrCat("rank", i);
      PSD_ASSIGN_OR_RETURN(rank.worker, StartOnDevices(environment, name, {{kOwner, address}}));
      PSD_ASSIGN_OR_RETURN(rank.input,
                           Pattern(devices_[i].get(), {elements_}, static_cast<float>(i + 1)));
      members_.members.push_back(name);
    }
    return absl::OkStatus();
  }
  absl::Status StartFloor() {
    const size_t bytes = static_cast<size_t>(elements_) * sizeof(float);
    const size_t received = 2 * (devices_.size() - 1) * (bytes / devices_.size());
    for (size_t i = 0; i < devices_.size(); ++i) {
      PSD_ASSIGN_OR_RETURN(ranks_[i].from, devices_[i]->memory().Allocate(received));
      PSD_ASSIGN_OR_RETURN(ranks_[i].to, devices_[i]->memory().Allocate(received));
      // Another device reads and writes this memory, so it must be there first.
      PSD_RETURN_IF_ERROR(devices_[i]->Synchronize());
    }
    return absl::OkStatus();
  }
  absl::Status AddCopies() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const size_t next = (i + 1) % ranks_.size();
      const Block& from = *ranks_[i].from;
      PSD_RETURN_IF_ERROR(devices_[next]->default_stream().CopyFrom(
          ranks_[next].to->data(), *devices_[i], from.data(), from.size()));
    }
    return absl::OkStatus();
  }

  // Calls f(rank) for all ranks at the same time. Returns the first error by rank.
  absl::Status OnAllRanks(absl::FunctionRef<absl::Status(size_t)> f) const {
    std::vector<absl::Status> results(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i)
      threads.emplace_back([&results, f, i] { results[i] = f(i); });
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& result : results) PSD_RETURN_IF_ERROR(result);
    return absl::OkStatus();
  }

  // Rank i gives the pattern times i + 1.
  absl::Status Check(const std::vector<Tensor>& sums) const {
    const auto count = static_cast<size_t>(elements_);
    const auto factor = static_cast<float>(sums.size() * (sums.size() + 1) / 2);
    std::vector<float> want;
    for (size_t i = 0; i < count; ++i) want.push_back(factor * PatternAt(i));
    for (const Tensor& sum : sums) {
      PSD_ASSIGN_OR_RETURN(const std::vector<float> got, ReadFloats(sum, 0, count));
      PSD_RETURN_IF_ERROR(CheckNear("the sum of all ranks", got, want));
    }
    return absl::OkStatus();
  }

  std::vector<std::shared_ptr<Device>> devices_;
  int64_t elements_ = 0;
  GroupOptions members_;
  std::unique_ptr<server::Server> registrar_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::vector<Case> GpuGroupCases() {
  Case one;
  one.name = "gpu_allreduce";
  one.has_peer = false;
  one.devices = 2;
  one.unit = {"ms", 1e3};
  one.make = [] { return std::make_unique<AllReduce>(); };
  return {one};
}

}  // namespace psd::bench
