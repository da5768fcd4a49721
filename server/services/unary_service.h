#pragma once

// The unary gRPC service for other languages. proto/psd/v1/service.proto says what each call does.

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/fair_queue.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/carrier/grpc/grpc_server_hook.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_types.h"
#include "core/services/gradients/gradient_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/status/status_service.h"
#include "core/services/values/value_service.h"
#include "google/protobuf/message_lite.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/services/gateway_sessions.h"
#include "server/services/unary_call.h"

namespace psd::server {

// Thread-safe. Its methods run on the worker's executor, where clients are served in turn. They do
// not block: a call that must wait is continued by a callback.
class UnaryService {
 public:
  // The parts of the worker that the service uses. They must outlive the service, and the agent
  // must be shut down before the service is destroyed.
  struct Uses {
    rpc::RpcAgent& agent;
    services::ValueService& values;
    services::GradientService& gradients;
    services::OptimizerService& optimizers;
    services::StatusService& status;
    dist_autograd::DistAutograd& autograd;
    MemoryBudget& memory;
    Executor& executor;
    TimerQueue& timers;
    Logger& logger;
    const Clock& clock;
  };

  UnaryService(const Uses& uses, const GatewayOptions& options);
  UnaryService(const UnaryService&) = delete;
  UnaryService& operator=(const UnaryService&) = delete;

  // Must be called before the server is built. The service must outlive the server.
  void Register(grpc::ServerBuilder& builder) { builder.RegisterService(&service_); }
  // Starts to take calls, once the server runs.
  void Serve(carrier::ServiceHost& host);
  // Waits at most `limit` until the running mutations are answered. If some are not, those that
  // still wait for others are stopped, and every session ends. Otherwise the sessions stay, so that
  // a client whose answer was lost still gets it. Requires: the worker's admission drains. Calls
  // that wait for other trainers are answered when the worker's agent begins to drain.
  void AwaitDrained(absl::Duration limit) PSD_EXCLUDES(mutex_);

 private:
  using Done = std::function<void(absl::Status)>;
  using MutationId = std::pair<GatewaySessions::SessionId, uint64_t>;  // session, sequence
  using Proto = v1::ParameterService;
  // The generated service, with every method's requests and replies as bytes.
  using RawService = Proto::WithRawMethod_OpenSession<
      Proto::WithRawMethod_RenewSession<Proto::WithRawMethod_CloseSession<
          Proto::WithRawMethod_List<Proto::WithRawMethod_Pull<Proto::WithRawMethod_Status<
              Proto::WithRawMethod_GetOrCreateParameter<Proto::WithRawMethod_GetOrCreateOptimizer<
                  Proto::WithRawMethod_Drop<Proto::WithRawMethod_NewContext<
                      Proto::WithRawMethod_ReleaseContext<Proto::WithRawMethod_PushGradient<
                          Proto::WithRawMethod_Step<Proto::Service>>>>>>>>>>>>>;

  void OpenSession(UnaryCall& call, const v1::OpenSessionRequest& request,
                   v1::OpenSessionReply& reply);
  void RenewSession(UnaryCall& call, const v1::RenewSessionRequest& request,
                    v1::RenewSessionReply& reply);
  void CloseSession(UnaryCall& call, const v1::CloseSessionRequest& request,
                    v1::CloseSessionReply& reply);
  void List(UnaryCall& call, const v1::ListValuesRequest& request, v1::ListValuesReply& reply);
  void Pull(UnaryCall& call, const v1::PullRequest& request, v1::PullReply& reply);
  void Status(UnaryCall& call, const v1::StatusRequest& request, v1::WorkerStatus& reply);
  void GetOrCreateParameter(UnaryCall& call, const v1::GetOrCreateParameterRequest& request,
                            v1::GetOrCreateParameterReply& reply);
  void GetOrCreateOptimizer(UnaryCall& call, const v1::GetOrCreateOptimizerRequest& request,
                            v1::GetOrCreateOptimizerReply& reply);
  void Drop(UnaryCall& call, const v1::DropRequest& request, v1::DropReply& reply);
  void NewContext(UnaryCall& call, const v1::NewContextRequest& request,
                  v1::NewContextReply& reply);
  void ReleaseContext(UnaryCall& call, const v1::ReleaseContextRequest& request,
                      v1::ReleaseContextReply& reply);
  void PushGradient(UnaryCall& call, const v1::PushGradientRequest& request,
                    v1::PushGradientReply& reply);
  void Step(UnaryCall& call, const v1::StepOptimizerRequest& request,
            v1::StepOptimizerReply& reply);

  absl::Time Now() const { return uses_.clock.Now(); }
  const std::string& name() const { return uses_.agent.self().name; }
  Incarnation incarnation() const { return uses_.agent.self().incarnation; }

  // FlowId::space of the clients of this service. Sessions of workers have another one.
  static constexpr uint32_t kSessionFlows = rpc::kSessionFlows + 1;
  static constexpr uint32_t kHostFlows = rpc::kSessionFlows + 2;
  // Returns the id of a client's session for optimizers: that of a worker with a single session.
  static GlobalId MemberSession(GatewaySessions::SessionId session) { return {session, 1}; }

  // Returns how the method `info` is served: `ask` requests its calls, and `method` serves them on
  // the executor. Calls that read are admitted here, others when they are known to be new.
  template <typename Request, typename Reply>
  UnaryMethod<Request, Reply> Serving(const rpc::MethodInfo& info,
                                      typename UnaryMethod<Request, Reply>::Ask ask,
                                      void (UnaryService::*method)(UnaryCall&, const Request&,
                                                                   Reply&));
  // `client` is the caller in the sense of rpc::Arrival. It is in the request, which has been
  // parsed.
  absl::Status Admit(UnaryCall& call, const rpc::MethodInfo& method, const rpc::PeerInfo& client,
                     size_t bytes) const;
  // Returns the name of the client and the session. The name is empty if no such session is open.
  rpc::PeerInfo ClientOf(GatewaySessions::SessionId session) const PSD_EXCLUDES(mutex_);
  // Returns the flow that a call belongs to: its session, or the client's host if it has none.
  static FlowId FlowOf(const rpc::PeerInfo& client, UnaryCall& call);
  // Answers a read.
  static void Answer(UnaryCall& call, const absl::Status& status);
  // Answers a read with a reply that may be large, if there is memory for it.
  template <typename Reply>
  void AnswerLarge(UnaryCall& call, Reply& reply) const {
    const absl::Status charged = Charge(call, 2 * reply.ByteSizeLong());  // the network has a copy
    // Clear would keep the memory until the error has been read.
    if (!charged.ok()) Reply().Swap(&reply);
    Answer(call, charged);
  }
  // Runs a mutation at most once per sequence number. `apply(done)` must fill `reply` and call
  // `done` once, now or later; `request` and `reply` live until then.
  void Mutate(UnaryCall& call, const rpc::MethodInfo& method, const v1::MutationHeader& header,
              const google::protobuf::MessageLite& request, google::protobuf::MessageLite& reply,
              const std::function<void(Done)>& apply) PSD_EXCLUDES(mutex_);
  void FinishMutation(UnaryCall& call, const MutationId& id,
                      const google::protobuf::MessageLite& reply, const absl::Status& status)
      PSD_EXCLUDES(mutex_);
  // Returns false if mutations still run after `limit`.
  bool AwaitAnswers(absl::Duration limit) PSD_EXCLUDES(mutex_);
  // Stops the waiting calls of a session that ends, and releases what it held. Calls that are being
  // applied go on, and the session is gone only when they have ended.
  void Stop(const GatewaySessions::Ended& ended);

  // Charges `bytes` of the call's request or reply until the call is gone.
  // Errors: RESOURCE_EXHAUSTED naming need, budget and use.
  absl::Status Charge(UnaryCall& call, size_t bytes) const;
  absl::Status PullInto(UnaryCall& call, const v1::PullRequest& request,
                        v1::PullReply& reply) const;
  absl::Status Accumulate(const v1::PushGradientRequest& request) PSD_EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<dist_autograd::ContextState>> FindContext(uint64_t session,
                                                                           uint64_t context) const
      PSD_EXCLUDES(mutex_);
  void CreateOptimizer(const v1::GetOrCreateOptimizerRequest& request, const Done& done);
  // Checks whether a mutation may take effect (GatewaySessions::BeginApply). The error says why it
  // may not.
  bool BeginApply(GatewaySessions::SessionId session, uint64_t sequence) PSD_EXCLUDES(mutex_);
  absl::Status WhyCancelled(GatewaySessions::SessionId session) const PSD_EXCLUDES(mutex_);
  // Calls GatewaySessions::JoinLife. If there is no room, forgets the session's lives that have
  // ended.
  absl::Status JoinLife(GatewaySessions::SessionId session, const std::string& optimizer,
                        GlobalId life) PSD_EXCLUDES(mutex_);
  void StartStep(const v1::StepOptimizerRequest& request, v1::StepOptimizerReply* reply,
                 const Done& done);

  // Ends sessions whose lease has ended; runs on the timer as long as there are sessions.
  void ExpireSessions() PSD_EXCLUDES(mutex_);
  void ReleaseContexts(const std::vector<GatewaySessions::ContextId>& contexts);

  const Uses uses_;
  const GatewayOptions options_;
  RawService service_;
  mutable Mutex mutex_;  // before: Clock
  GatewaySessions sessions_ PSD_GUARDED_BY(mutex_);
  size_t mutations_ PSD_GUARDED_BY(mutex_) = 0;  // mutations that run and are not answered yet
  CondVar answered_;                             // `mutations_` is 0 again
  bool timer_armed_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::server
