#pragma once

// The unary gRPC service for other languages: proto/psd/v1/service.proto, which says what each
// call does, on the worker's own operations.

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/worker/runtime.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/services/client_sessions.h"

namespace psd::server {

// Thread-safe. Its methods run on gRPC's threads and do not block; what waits is continued later.
// Register it with the server builder; it outlives the server.
class UnaryService final : public v1::ParameterService::CallbackService {
 public:
  // `runtime` is shut down before the service goes, and outlives it.
  UnaryService(worker::Runtime& runtime, const ClientSessionOptions& options);
  UnaryService(const UnaryService&) = delete;
  UnaryService& operator=(const UnaryService&) = delete;

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* OpenSession(Context*, const v1::OpenSessionRequest*, v1::OpenSessionReply*) override;
  Reactor* RenewSession(Context*, const v1::RenewSessionRequest*, v1::RenewSessionReply*) override;
  Reactor* CloseSession(Context*, const v1::CloseSessionRequest*, v1::CloseSessionReply*) override;
  Reactor* List(Context*, const v1::ListValuesRequest*, v1::ListValuesReply*) override;
  Reactor* Pull(Context*, const v1::PullRequest*, v1::PullReply*) override;
  Reactor* Status(Context*, const v1::StatusRequest*, v1::WorkerStatus*) override;
  Reactor* GetOrCreateParameter(Context*, const v1::GetOrCreateParameterRequest*,
                                v1::GetOrCreateParameterReply*) override;
  Reactor* GetOrCreateOptimizer(Context*, const v1::GetOrCreateOptimizerRequest*,
                                v1::GetOrCreateOptimizerReply*) override;
  Reactor* Drop(Context*, const v1::DropRequest*, v1::DropReply*) override;
  Reactor* NewContext(Context*, const v1::NewContextRequest*, v1::NewContextReply*) override;
  Reactor* ReleaseContext(Context*, const v1::ReleaseContextRequest*,
                          v1::ReleaseContextReply*) override;
  Reactor* PushGradient(Context*, const v1::PushGradientRequest*, v1::PushGradientReply*) override;
  Reactor* Step(Context*, const v1::StepOptimizerRequest*, v1::StepOptimizerReply*) override;

 private:
  using Done = std::function<void(absl::Status)>;

  absl::Time Now() const { return runtime_.options().clock->Now(); }

  // Answers a read.
  Reactor* Answer(Context* context, const absl::Status& status) const;
  // Runs a mutation once per sequence number: `apply(done)` fills *reply and calls done, once, now
  // or later; *request and *reply live until then.
  template <typename Request, typename Reply>
  Reactor* Mutate(Context* context, absl::string_view method, const Request& request, Reply* reply,
                  const std::function<void(Done)>& apply) PSD_EXCLUDES(mutex_);
  template <typename Reply>
  void FinishMutation(Context* context, Reactor* reactor, ClientSessions::SessionId session,
                      uint64_t sequence, const Reply& reply, const absl::Status& status)
      PSD_EXCLUDES(mutex_);

  absl::Status PullInto(const v1::PullRequest& request, v1::PullReply& reply) const;
  absl::Status Accumulate(const v1::PushGradientRequest& request) PSD_EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<dist_autograd::ContextState>> FindContext(uint64_t session,
                                                                           uint64_t context) const
      PSD_EXCLUDES(mutex_);
  void CreateOptimizer(const v1::GetOrCreateOptimizerRequest& request, const Done& done);
  void StartStep(const v1::StepOptimizerRequest& request, v1::StepOptimizerReply* reply,
                 const Done& done);

  // Ends leases; runs on the timer as long as there are sessions.
  void ExpireSessions() PSD_EXCLUDES(mutex_);
  void ReleaseContexts(const std::vector<ClientSessions::ContextId>& contexts);

  worker::Runtime& runtime_;
  const ClientSessionOptions options_;
  mutable Mutex mutex_;  // leaf
  ClientSessions sessions_ PSD_GUARDED_BY(mutex_);
  bool timer_armed_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::server
