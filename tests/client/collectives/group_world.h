#pragma once

// A registrar and the ranks of a group in one process, over real connections or over a simulated
// network.

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/device.h"
#include "core/base/log.h"
#include "core/carrier/faulty/faulty_network.h"
#include "core/rpc/session_options.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/collectives/network_registrar.h"
#include "tests/client/test_world.h"

namespace psd {

// Calls f(0) … f(count - 1) at the same time, each on a thread of its own.
inline void InParallel(int count, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&f, i] { f(i); });
  for (std::thread& thread : threads) thread.join();
}

// Wherever the tensors are. Requires: they are contiguous.
inline bool SameBits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor a_here = Must(a.ToHost()), b_here = Must(b.ToHost());
  return std::memcmp(a_here.raw_data(), b_here.raw_data(), a.NumBytes()) == 0;
}

// A registrar, and trainers t0, t1, … that listen.
class GroupWorld {
 public:
  // Over real connections. The registrar is a daemon.
  explicit GroupWorld(int trainers, bool shared_memory = true, size_t memory_budget_bytes = 0,
                      std::vector<std::shared_ptr<Device>> devices = {},
                      std::shared_ptr<Logger> logger = NewNullLogger())
      : shared_memory_(shared_memory),
        memory_budget_bytes_(memory_budget_bytes),
        devices_(std::move(devices)),
        logger_(std::move(logger)) {
    StartRegistrar("127.0.0.1:0");
    for (int i = 0; i < trainers; ++i) Add();
  }
  // Over a simulated network that a thread drives, and that is shared with the carriers.
  // The names of the workers there are their own; that of the registrar is owner0.
  GroupWorld(int trainers, std::shared_ptr<carrier::FaultyNetwork> network,
             const rpc::SessionOptions& session)
      : shared_memory_(false),
        memory_budget_bytes_(0),
        logger_(NewNullLogger()),
        network_(std::move(network)),
        session_(session) {
    StartRegistrar("127.0.0.1:0");
    for (int i = 0; i < trainers; ++i) Add();
  }
  // The registrar forgets all workers, which join again one after the other.
  void RestartRegistrar() {
    daemon_.reset();
    registrar_.reset();
    StartRegistrar(address_);
  }

  WorkerOptions Options(const std::string& name) const {
    WorkerOptions options;
    options.name = name;
    options.owners = {{"owner0", address_}};
    options.listen = "127.0.0.1:0";
    options.shared_memory = shared_memory_;
    options.memory_budget_bytes = memory_budget_bytes_;
    options.devices = devices_;
    options.session = session_;
    options.logger = logger_;
    return options;
  }
  Worker& Add() {
    const std::string name = absl::StrCat("t", workers.size());
    workers.push_back(network_ == nullptr
                          ? Must(Worker::Start(Options(name)))
                          : Must(StartWithCarrier(network_->NewCarrier(name), Options(name))));
    return *workers.back();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& worker : workers) names.push_back(worker->name());
    return names;
  }

  // All trainers join a group, with t0 as rank 0 and so on.
  std::vector<std::shared_ptr<Group>> JoinAll(const std::string& name, GroupOptions options = {}) {
    options.members = Names();
    std::vector<std::shared_ptr<Group>> groups(workers.size());
    InParallel(static_cast<int>(workers.size()),
               [&](int i) { groups[i] = Must(Group::Join(*workers[i], name, options)); });
    return groups;
  }

  std::vector<std::unique_ptr<Worker>> workers;

 private:
  void StartRegistrar(const std::string& listen) {
    if (network_ != nullptr) {
      registrar_ = std::make_unique<NetworkRegistrar>("owner0", listen,
                                                      network_->NewCarrier("owner0"), session_);
      address_ = registrar_->address();
      return;
    }
    server::DaemonConfig config;
    config.name = "owner0";
    config.listen = listen;
    daemon_ = Must(server::Server::Create(config, {}, NewNullLogger()));
    address_ = Must(daemon_->Start());
  }

  const bool shared_memory_;
  const size_t memory_budget_bytes_;                    // of each trainer; 0 means no limit
  const std::vector<std::shared_ptr<Device>> devices_;  // of each trainer
  const std::shared_ptr<Logger> logger_;                // shared by the trainers
  // Null if the connections are real. Shared with the carriers and the test.
  const std::shared_ptr<carrier::FaultyNetwork> network_;
  const rpc::SessionOptions session_;
  // One of these two is the registrar.
  std::unique_ptr<server::Server> daemon_;
  std::unique_ptr<NetworkRegistrar> registrar_;
  std::string address_;
};

}  // namespace psd
