#include "server/services/health_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/services/member_tag.h"
#include "server/services/raw_messages.h"
#include "server/services/unary_call.h"

namespace psd::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// The most bytes of a client's name that an error text quotes: it travels in HTTP/2 headers.
constexpr size_t kMaxShownBytes = 256;

grpc::Status NoService(const std::string& name) {
  return {grpc::StatusCode::NOT_FOUND,
          absl::StrCat("no service '", absl::CHexEscape(name.substr(0, kMaxShownBytes)),
                       "' here; the empty name asks for the server as a whole")};
}

}  // namespace

// One Watch call, from its request on. Deletes itself when no operation of it is outstanding.
class HealthService::Watch {
 public:
  // Requests the next call. If the host takes no more calls, all watches end.
  static void Await(HealthService& health, carrier::ServiceHost& host) {
    std::function<void()> gone = host.CountCall();
    if (gone == nullptr) return CarryOut(health.watches_.Stop());
    auto* watch = new Watch(health, host, std::move(gone));
    health.watches_.Add(watch);
    watch->context_.AsyncNotifyWhenDone(watch->done_.Start());
    health.service_.RequestWatch(&watch->context_, &watch->received_, &watch->writer_, host.queue(),
                                 host.queue(), watch->requested_.Start());
  }

  void CarryOut(const HealthWatches::Step& step) {
    switch (step.kind) {
      case HealthWatches::Step::kNothing:
        return;
      case HealthWatches::Step::kWrite:
        return Write(step.state);
      case HealthWatches::Step::kFinish:
        return writer_.Finish(step.end, operation_.Start());
      case HealthWatches::Step::kForget:
        return Delete();
    }
  }

  static void CarryOut(const HealthWatches::Steps& steps) {
    for (const auto& [watch, step] : steps) static_cast<Watch*>(watch)->CarryOut(step);
  }

 private:
  Watch(HealthService& health, carrier::ServiceHost& host, std::function<void()> gone)
      : health_(health), host_(host), gone_(std::move(gone)) {}

  // Called when a call has come, or with false when the server shuts down. gRPC reports no "done"
  // for a call that never came.
  void Requested(bool ok) {
    if (!ok) {
      health_.watches_.Remove(this);
      CarryOut(health_.watches_.Stop());
      return Delete();
    }
    host_.OnCall(context_);
    HealthCheckRequest request;
    const grpc::Status parsed = ParseSmall(received_, request);
    const HealthWatches::Step first = health_.watches_.Begin(this, request.service(), parsed);
    Await(health_, host_);
    CarryOut(first);
  }

  void Write(ServingStatus state) {
    HealthCheckResponse response;
    response.set_status(state);
    grpc::ByteBuffer bytes;
    ToBytes(response, bytes);
    writer_.Write(bytes, operation_.Start());
  }

  void Completed(bool ok) { CarryOut(health_.watches_.Completed(this, ok)); }
  void Done(bool) { CarryOut(health_.watches_.Done(this)); }

  void Delete() {
    const std::function<void()> gone = std::move(gone_);
    delete this;
    gone();
  }

  HealthService& health_;
  carrier::ServiceHost& host_;
  grpc::ServerContext context_;
  grpc::ByteBuffer received_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_{&context_};
  MemberTag<Watch> requested_{*this, &Watch::Requested};
  MemberTag<Watch> operation_{*this, &Watch::Completed};  // a write or the finish
  MemberTag<Watch> done_{*this, &Watch::Done};
  std::function<void()> gone_;
};

void HealthService::Serve(carrier::ServiceHost& host) {
  UnaryMethod<HealthCheckRequest, HealthCheckResponse> check;
  check.ask = [this](auto... arguments) { service_.RequestCheck(arguments...); };
  check.charge = [](UnaryCall&, size_t bytes) { return CheckSmall(bytes); };
  check.handle = [this](UnaryCall& call, const HealthCheckRequest& request,
                        HealthCheckResponse& response) {
    std::optional<ServingStatus> state = watches_.Find(request.service());
    if (!state.has_value()) return call.Finish(NoService(request.service()));
    response.set_status(*state);
    call.Finish(grpc::Status::OK);
  };
  ServeUnary(host, std::move(check));
  Watch::Await(*this, host);
}

void HealthService::SetServing(const std::string& service, bool serving) {
  Watch::CarryOut(watches_.Set(service, serving));
}

}  // namespace psd::server
