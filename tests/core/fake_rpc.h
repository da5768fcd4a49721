#pragma once

// Workers of one process that call each other without carrier, sessions or threads. Every request
// and every reply is a step, which waits in a queue until the test runs it. For tests of the layers
// above rpc.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/mutex.h"
#include "core/rpc/admission.h"
#include "core/rpc/rpc_agent.h"

namespace psd::testing {

class FakeAgent;

// The network and its queue of steps. Thread-safe; steps run on the thread that calls RunOne.
class FakeNetwork {
 public:
  // With a seed, the steps run in a random order, otherwise in the order in which they were queued.
  explicit FakeNetwork(std::optional<uint64_t> seed = std::nullopt) : seeded_(seed.has_value()) {
    if (seeded_) random_.seed(*seed);
  }

  // A filter may stop a request: if it returns an error, the caller gets this error.
  using Filter = std::function<absl::Status(const std::string& from, const std::string& to,
                                            const rpc::Request& request)>;
  void SetFilter(Filter filter) { filter_ = std::move(filter); }

  // Sets the probability with which a request or reply is lost each time that it is sent. A lost
  // message is sent again, as rpc would do, so it arrives once, but later.
  void SetLoss(double probability) { loss_ = probability; }
  // Loses the next `times` sent requests of the method.
  void Lose(const std::string& method, int times) PSD_EXCLUDES(mutex_);
  // Returns how many messages were lost so far.
  int lost() const PSD_EXCLUDES(mutex_);

  // Runs one step. Returns false if there was none.
  bool RunOne();
  // Runs steps until none is left.
  void RunAll() {
    while (RunOne()) {
    }
  }
  // Runs steps until the future is ready or no step is left. May be called within a step.
  template <typename T>
  void RunUntil(const Future<T>& future) {
    while (!future.IsReady() && RunOne()) {
    }
  }

  // Ends the peer's session on every other worker, as if it died, or with a goodbye.
  void EndSessionsOf(const std::string& name, bool goodbye = false);

  // Returns how many requests of a method were sent.
  int Count(const std::string& method) const;

 private:
  friend class FakeAgent;
  // `method` is the method of a request, or empty for a reply.
  void Push(Task step, const std::string& method = "") PSD_EXCLUDES(mutex_);
  bool Lost(const std::string& method) PSD_REQUIRES(mutex_);

  struct Step {
    std::string method;
    Task task;
  };
  const bool seeded_;
  std::mt19937_64 random_;
  Filter filter_;
  std::map<std::string, FakeAgent*> agents_;
  mutable Mutex mutex_;  // leaf
  std::vector<Step> steps_ PSD_GUARDED_BY(mutex_);
  double loss_ = 0;
  std::map<std::string, int> to_lose_ PSD_GUARDED_BY(mutex_);
  int lost_ PSD_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> counts_ PSD_GUARDED_BY(mutex_);
};

class FakeAgent : public rpc::RpcAgent {
 public:
  FakeAgent(FakeNetwork& network, rpc::PeerInfo self);
  ~FakeAgent() override;

  const rpc::PeerInfo& self() const override { return self_; }
  void RegisterMethod(rpc::Method method) override { methods_[method.name] = std::move(method); }
  rpc::Admission& admission() override { return admission_; }
  rpc::Access& access() override { return access_; }
  std::vector<std::string> Methods() const override {
    std::vector<std::string> names;
    for (const auto& [name, method] : methods_) names.push_back(name);
    return names;
  }
  void OnSessionEnded(std::function<void(const rpc::PeerInfo&, uint64_t epoch)> callback) override {
    session_ended_.push_back(std::move(callback));
  }
  void OnGoodbye(std::function<void(const rpc::PeerInfo&, uint64_t epoch)> callback) override {
    goodbye_.push_back(std::move(callback));
  }
  void OnSessionLost(
      std::function<void(const rpc::PeerInfo&, uint64_t, const absl::Status&)> callback) override {
    session_lost_.push_back(std::move(callback));
  }
  void OnDraining(std::function<void()> callback) override {
    on_draining_.push_back(std::move(callback));
  }
  absl::StatusOr<std::string> Start(const std::string& address) override { return address; }
  void AddPeer(const std::string&, const std::string&) override {}
  Future<rpc::PeerInfo> Connect(const std::string& name, const rpc::CallOptions&) override;
  rpc::Call StartCall(const std::string& peer, rpc::Request request,
                      const rpc::CallOptions& options) override;
  rpc::SessionOnPeer SessionOn(const std::string& peer) const override;
  std::vector<rpc::PeerStatus> Peers() const override { return {}; }
  rpc::Reach ReachOf(const std::string&) const override { return rpc::Reach::kReachable; }
  // Only runs the callbacks: further calls are served as before.
  void BeginDraining() override {
    for (const auto& callback : on_draining_) callback();
  }
  void AwaitIdle(absl::Duration) override {}
  void Shutdown(absl::Duration) override {}

  // The epoch of all sessions of this worker.
  uint64_t epoch() const { return epoch_; }

 private:
  friend class FakeNetwork;
  void Serve(const rpc::PeerInfo& caller, uint64_t epoch, rpc::Request request,
             Promise<rpc::Reply> answer);

  FakeNetwork& network_;
  const rpc::PeerInfo self_;
  rpc::Admission admission_{self_.name};
  rpc::Access access_{self_};
  uint64_t epoch_ = 1;
  std::map<std::string, rpc::Method> methods_;
  std::vector<std::function<void()>> on_draining_;
  std::vector<std::function<void(const rpc::PeerInfo&, uint64_t)>> session_ended_;
  std::vector<std::function<void(const rpc::PeerInfo&, uint64_t)>> goodbye_;
  std::vector<std::function<void(const rpc::PeerInfo&, uint64_t, const absl::Status&)>>
      session_lost_;
};

}  // namespace psd::testing
