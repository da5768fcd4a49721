#include "core/carrier/grpc/grpc_carrier.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/channel_settings.h"
#include "core/carrier/grpc/connection_listener.h"
#include "core/carrier/grpc/grpc_acceptor.h"
#include "core/carrier/grpc/grpc_link.h"
#include "core/carrier/grpc/grpc_server_hook.h"
#include "core/carrier/grpc/poller.h"

namespace psd::carrier {
namespace {

using NewConnections = grpc::experimental::ExternalConnectionAcceptor;

// The number of pending requests for new streams on the server.
constexpr int kOpenRequests = 8;

absl::Status CheckOptions(const GrpcCarrierOptions& options) {
  if (options.poll_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("poll_threads = ", options.poll_threads, "; at least 1 is needed"));
  }
  if (options.bulk_streams < 1 || options.bulk_streams > static_cast<int>(BulkQueue::kMaxStreams)) {
    return absl::InvalidArgumentError(absl::StrCat("bulk_streams = ", options.bulk_streams,
                                                   "; 1 to ", BulkQueue::kMaxStreams, " work"));
  }
  if (options.piece_bytes < kMinPieceBytes || options.piece_bytes > kMaxPieceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("piece_bytes = ", options.piece_bytes, "; ",
                                                   kMinPieceBytes, " to ", kMaxPieceBytes,
                                                   " work"));
  }
  return absl::OkStatus();
}

// Replaces the port of `address`: "127.0.0.1:0", 7071 -> "127.0.0.1:7071".
std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

// Makes malloc keep gRPC's read buffers, which have megabytes. By default malloc returns freed
// blocks of that size to the system at once, and writing to fresh pages takes a third of a
// receiver's time. Once a larger block was mapped and freed, malloc raises its threshold and keeps
// twice that much (mallopt(3), M_MMAP_THRESHOLD). So this function allocates and frees the largest
// block that counts for the threshold, without touching its pages. It has no effect if the process
// has its own settings.
void TeachMallocToKeepBuffers() {
  constexpr size_t kLargestThatCounts = (size_t{32} << 20) - (size_t{64} << 10);
  void* volatile block = std::malloc(kLargestThatCounts);  // volatile: not to be optimised away
  std::free(block);
}

// Gives further services the server's completion queue. The core counts their calls.
class Host final : public ServiceHost {
 public:
  explicit Host(std::shared_ptr<GrpcCore> core) : core_(std::move(core)) {}

  void SetQueue(grpc::ServerCompletionQueue* queue) { queue_ = queue; }
  grpc::ServerCompletionQueue* queue() override { return queue_; }
  void SetConnections(ConnectionListener* connections) { connections_ = connections; }
  std::function<void()> CountCall() override { return core_->CountStream(); }
  void OnCall(const grpc::ServerContext& context) override {
    connections_->unheard().Heard(context.peer());
  }

 private:
  const std::shared_ptr<GrpcCore> core_;  // shared with the carrier
  grpc::ServerCompletionQueue* queue_ = nullptr;
  ConnectionListener* connections_ = nullptr;
};

}  // namespace

struct GrpcCarrier::Listener {
  explicit Listener(const std::shared_ptr<GrpcCore>& core) : host(core) {}

  Host host;
  grpc::AsyncGenericService service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<ConnectionListener> connections;
};

absl::StatusOr<std::shared_ptr<Carrier>> NewGrpcCarrier(const GrpcCarrierOptions& options) {
  PSD_RETURN_IF_ERROR(CheckOptions(options));
  TeachMallocToKeepBuffers();
  GrpcCarrierOptions complete = options;
  if (complete.memory == nullptr) complete.memory = MemoryBudget::Create(0);
  if (complete.allocator == nullptr) complete.allocator = complete.memory->transit();
  auto carrier = std::make_shared<GrpcCarrier>(complete);
  PSD_RETURN_IF_ERROR(carrier->Start());
  return std::static_pointer_cast<Carrier>(std::move(carrier));
}

GrpcCarrier::GrpcCarrier(const GrpcCarrierOptions& options)
    : core_(std::make_shared<GrpcCore>(options)) {}

absl::Status GrpcCarrier::Start() {
  PSD_RETURN_IF_ERROR(core_->started());
  return core_->options().start_threads ? core_->ReadyToDial() : absl::OkStatus();
}

GrpcCarrier::~GrpcCarrier() {
  Shutdown();
}

absl::StatusOr<std::string> GrpcCarrier::Listen(const std::string& address, AcceptCallback accept) {
  MutexLock lock(mutex_);
  if (stopped_) return absl::UnavailableError("this carrier was shut down");
  if (listened_) return absl::FailedPreconditionError("this carrier listens already");
  auto listener = std::make_unique<Listener>(core_);
  PSD_ASSIGN_OR_RETURN(std::string bound,
                       StartListener(address, std::move(accept), listener.get()));
  listener_ = std::move(listener);
  listened_ = true;
  return bound;
}

absl::StatusOr<std::string> GrpcCarrier::StartListener(const std::string& address,
                                                       AcceptCallback accept, Listener* listener) {
  const GrpcCarrierOptions& options = core_->options();
  // All threads are started first, so that nothing has to be undone when the system refuses one.
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<Poller> poller, Poller::Create(options.poll_threads));
  PSD_ASSIGN_OR_RETURN(
      listener->connections,
      ConnectionListener::Bind(address, options.keepalive_timeout, options.handshake_timeout));
  grpc::ServerBuilder builder;
  std::shared_ptr<NewConnections> connections =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&listener->service);
  ConfigureServer(options, builder);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  grpc::ServerCompletionQueue* requests = queue.get();
  if (options.server_hook != nullptr) options.server_hook->Configure(builder);
  listener->server = builder.BuildAndStart();
  poller->Watch(std::move(queue));
  if (listener->server == nullptr) {
    return absl::InternalError(absl::StrCat("gRPC cannot serve at ", address));
  }
  core_->Keep(std::move(poller));
  listener->host.SetQueue(requests);
  listener->host.SetConnections(listener->connections.get());
  // The listener outlives all streams: it is destroyed only when the carrier is quiet.
  auto acceptor =
      std::make_shared<GrpcAcceptor>(core_, listener->connections->unheard(), std::move(accept));
  for (int i = 0; i < kOpenRequests; ++i) acceptor->AcceptNext(&listener->service, requests);
  if (options.server_hook != nullptr) options.server_hook->Started(listener->host);
  listener->connections->Start(
      [connections](int fd) {
        NewConnections::NewConnectionParameters taken;
        taken.fd = fd;
        connections->HandleNewConnection(&taken);
      },
      options.on_refusing);
  return WithPort(address, listener->connections->port());
}

void GrpcCarrier::Connect(const std::string& address, absl::Duration timeout,
                          std::shared_ptr<LinkHandler> handler, ConnectCallback done) {
  GrpcLink::Dial(core_, address, timeout, std::move(handler), std::move(done));
}

void GrpcCarrier::Shutdown() {
  MutexLock lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  for (const auto& link : core_->BeginShutdown()) link->Close();
  if (listener_ != nullptr) {
    listener_->connections->Stop();
    auto linger = absl::ToChronoMilliseconds(core_->options().linger);
    listener_->server->Shutdown(std::chrono::system_clock::now() + linger);
  }
  core_->AwaitQuiet();
  core_->Stop();
  listener_.reset();
}

}  // namespace psd::carrier
