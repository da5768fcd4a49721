#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/autograd/engine.h"
#include "core/autograd/variable.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/timer.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/context_table.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/functions.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/dist_autograd/pass.h"
#include "core/rpc/draining.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"
#include "core/tensor/tensor.h"

namespace psd::dist_autograd {

// The state and methods of DistAutograd. Shared by it, its passes and the agent's callbacks.
class DistAutograd::Core : public PassHost, public std::enable_shared_from_this<Core> {
 public:
  Core(rpc::RpcAgent& agent, IdSource& ids, TimerQueue& timers, Executor& executor,
       std::shared_ptr<MemoryBudget> memory, GradientMessages::Uses messages)
      : agent_(agent),
        ids_(ids),
        timers_(timers),
        executor_(executor),
        self_(agent.self()),
        table_(agent.self(), ids, std::move(memory)),
        messages_(std::move(messages)) {}

  void Register();
  void Close();

  // Returns the tensors as variables that need no gradient.
  static std::vector<Variable> Constants(std::vector<Tensor> tensors);

  ContextTable& table() { return table_; }
  IdSource& ids() { return ids_; }
  void Release(GlobalId context, const std::string& source);
  absl::StatusOr<std::string> Describe(ContextState& context,
                                       const std::vector<Variable>& variables);
  absl::StatusOr<std::vector<Variable>> Receive(ContextState& context, const rpc::PeerInfo& sender,
                                                const MessageInfo& info,
                                                std::vector<Tensor> tensors);
  // Whether gradients of the message are taken in pieces: they are wanted on a device.
  bool TakesPieces(const SendFunction& send) const {
    return send.device() != nullptr && messages_.WantsPieces();
  }
  Future<Unit> Start(const std::shared_ptr<ContextState>& context,
                     absl::StatusOr<std::vector<Root>> roots, const BackwardOptions& options);

  // Our session on a worker. Epoch 0: there is none.
  rref::SessionKey SessionOn(const std::string& peer) {
    const rref::Gate::Entry entry(gate_);
    if (!entry.open()) return {};
    const rpc::SessionOnPeer session = agent_.SessionOn(peer);
    return {session.incarnation, session.epoch};
  }

  // The functions of PassHost.
  const rpc::PeerInfo& self() const override { return self_; }
  Future<rpc::Reply> Send(const std::string& peer, rpc::Request request,
                          absl::Duration timeout) override {
    rref::Gate::Entry entry(gate_);
    if (!entry.open()) {
      return Future<rpc::Reply>::Ready(absl::CancelledError(absl::StrCat(self_.name, " is going")));
    }
    rpc::CallOptions options;
    options.timeout = timeout;
    return agent_.StartCall(peer, std::move(request), options).reply();
  }
  TimerQueue::Id RunAfter(absl::Duration delay, Task task) override {
    rref::Gate::Entry entry(gate_);
    return entry.open() ? timers_.RunAfter(delay, std::move(task)) : 0;
  }
  void CancelTimer(TimerQueue::Id id) override {
    rref::Gate::Entry entry(gate_);
    if (entry.open() && id != 0) timers_.Cancel(id);
  }
  absl::Status RunOnExecutor(const rpc::ServerCall& call, Task task) override {
    return Submit(rpc::LabelOf(WorkLabel::Kind::kOwn, call), std::move(task));
  }
  absl::Status RunOwn(Task task) override {
    return Submit({WorkLabel::Kind::kOwn, {}}, std::move(task));
  }
  GradientMessages& messages() override { return messages_; }
  void PassEnded(const Pass& pass) override {
    table_.EndPass(pass.info().context, pass.info().pass);
  }

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;

  absl::Status Submit(const WorkLabel& label, Task task) {
    rref::Gate::Entry entry(gate_);
    if (!entry.open()) return absl::CancelledError(absl::StrCat(self_.name, " is going"));
    return executor_.SubmitAs(label, std::move(task));
  }
  absl::StatusOr<std::shared_ptr<Pass>> Join(const PassInfo& info);
  void OnGradient(const CallPtr& call);
  // Takes the gradients of a request when what it leaves out has been fetched.
  absl::Status FetchGradient(const CallPtr& call);
  void AnswerGradient(const CallPtr& call);
  absl::Status TakeGradient(const CallPtr& call);
  // The message for which a request has gradients.
  struct Target {
    GradientInfo info;
    std::shared_ptr<SendFunction> send;
  };
  absl::StatusOr<Target> TargetOf(const rpc::ServerCall& call) const;
  // Asks for copies of gradients that were lent or left out.
  static void Refuse(const CallPtr& call, const absl::Status& why);
  void OnMark(const CallPtr& call);
  void OnAbort(const CallPtr& call);
  void OnRelease(const CallPtr& call);
  void OnSessionEnded(const rpc::PeerInfo& peer, uint64_t epoch);
  // Ends the passes that wait for gradients of other workers, because no more of them come.
  void Drain();
  absl::Status Draining() const { return rpc::DrainingError(self_.name, "the backward pass"); }
  void Finish(const ContextTable::Erased& erased, const std::string& source);

  rpc::RpcAgent& agent_;  // this and the next three members are used only inside the gate
  IdSource& ids_;
  TimerQueue& timers_;
  Executor& executor_;
  const rpc::PeerInfo self_;
  ContextTable table_;
  GradientMessages messages_;
  rref::Gate gate_;
  std::atomic<bool> draining_{false};
};

}  // namespace psd::dist_autograd
