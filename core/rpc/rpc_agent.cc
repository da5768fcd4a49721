#include "core/rpc/rpc_agent.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/rpc/agent_core.h"
#include "core/rpc/header_codec.h"

namespace psd::rpc {
namespace {

class RpcAgentImpl : public RpcAgent {
 public:
  explicit RpcAgentImpl(AgentOptions options)
      : core_(std::make_shared<AgentCore>(std::move(options))) {}
  ~RpcAgentImpl() override { Shutdown(absl::ZeroDuration()); }

  const PeerInfo& self() const override { return core_->options().self; }
  Admission& admission() override { return core_->admission(); }
  Access& access() override { return core_->access(); }
  void RegisterMethod(Method method) override { core_->RegisterMethod(std::move(method)); }
  std::vector<std::string> Methods() const override { return core_->Methods(); }
  void OnSessionEnded(std::function<void(const PeerInfo&, uint64_t)> callback) override {
    core_->OnSessionEnded(std::move(callback));
  }
  void OnGoodbye(std::function<void(const PeerInfo&, uint64_t)> callback) override {
    core_->OnGoodbye(std::move(callback));
  }
  void OnSessionLost(
      std::function<void(const PeerInfo&, uint64_t, const absl::Status&)> callback) override {
    core_->OnSessionLost(std::move(callback));
  }
  void OnDraining(std::function<void()> callback) override {
    core_->OnDraining(std::move(callback));
  }
  absl::StatusOr<std::string> Start(const std::string& address) override {
    return core_->Start(address);
  }
  void AddPeer(const std::string& name, const std::string& address) override {
    if (name != self().name) core_->AddPeer(name, address);
  }

  Future<PeerInfo> Connect(const std::string& name, const CallOptions& options) override {
    CallSpec spec;
    spec.connect_only = true;
    spec.wait_for_ready = options.wait_for_ready;
    auto call = ClientCall::Create(name, Request{});
    core_->StartCall(call, std::move(spec), options.timeout);
    return call->reply().Then([](const absl::StatusOr<Reply>& reply) -> absl::StatusOr<PeerInfo> {
      if (!reply.ok()) return reply.status();
      return reply->callee;
    });
  }

  Call StartCall(const std::string& peer, Request request, const CallOptions& options) override {
    CallSpec spec;
    spec.kind = core_->KindOf(request);
    spec.wait_for_ready = options.wait_for_ready;
    spec.session_bound = request.session_bound;
    spec.only_incarnation = request.only_incarnation;
    spec.only_epoch = request.only_epoch;
    auto call = ClientCall::Create(peer, std::move(request));
    core_->StartCall(call, std::move(spec), options.timeout);
    return Call(call->reply(), [weak = std::weak_ptr<AgentCore>(core_), call] {
      if (auto core = weak.lock()) core->CancelCall(*call);
    });
  }

  SessionOnPeer SessionOn(const std::string& peer) const override { return core_->SessionOn(peer); }
  std::vector<PeerStatus> Peers() const override { return core_->Peers(); }
  Reach ReachOf(const std::string& name) const override { return core_->ReachOf(name); }
  void BeginDraining() override { core_->BeginDraining(); }
  void AwaitIdle(absl::Duration limit) override { core_->AwaitIdle(limit); }
  void Shutdown(absl::Duration drain) override { core_->Shutdown(drain); }

 private:
  const std::shared_ptr<AgentCore> core_;  // shared with links and served calls
};

}  // namespace

const std::string* Reply::attachment(uint32_t tag) const {
  return FindAttachment(attachments, tag);
}

absl::StatusOr<std::unique_ptr<RpcAgent>> RpcAgent::Create(AgentOptions options) {
  PSD_RETURN_IF_ERROR(CheckWorkerName(options.self.name));
  if (options.self.incarnation == 0) {
    return absl::InvalidArgumentError("a worker needs an incarnation that is not zero");
  }
  if (options.clock == nullptr || options.carrier == nullptr || options.executor == nullptr ||
      options.timers == nullptr) {
    return absl::InvalidArgumentError("an agent needs a clock, a carrier, an executor and timers");
  }
  const SessionOptions& session = options.session;
  if (session.lease <= absl::ZeroDuration() || session.silence <= absl::ZeroDuration() ||
      session.reconnect_min <= absl::ZeroDuration() || session.max_unacknowledged_answers == 0) {
    return absl::InvalidArgumentError("the times and bounds of sessions must be positive");
  }
  if (options.logger == nullptr) options.logger = NewNullLogger();
  return std::unique_ptr<RpcAgent>(std::make_unique<RpcAgentImpl>(std::move(options)));
}

}  // namespace psd::rpc
