#include <grpcpp/generic/async_generic_service.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/wire_floors.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

constexpr char kMethod[] = "/floor/Echo";

// Returns an empty message. (A default ByteBuffer is no message at all.)
grpc::ByteBuffer EmptyMessage() {
  const grpc::Slice slice;
  return grpc::ByteBuffer(&slice, 1);
}

// Returns a message of `bytes` bytes: `head`, then zeros, which are not copied.
grpc::ByteBuffer MessageOf(uint64_t head, size_t bytes) {
  static const std::vector<char> zeros(kMaxEchoBytes);
  const grpc::Slice slices[] = {
      grpc::Slice(&head, sizeof head),
      grpc::Slice(zeros.data(), bytes - std::min(bytes, sizeof head), grpc::Slice::STATIC_SLICE)};
  return grpc::ByteBuffer(slices, 2);
}

// Returns the head of a message, limited to kMaxEchoBytes; 0 for an empty message.
size_t HeadOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  uint64_t head = 0;
  if (!message.Dump(&slices).ok() || slices.empty() || slices[0].size() < sizeof head) return 0;
  std::memcpy(&head, slices[0].begin(), sizeof head);
  return std::min(static_cast<size_t>(head), kMaxEchoBytes);
}

// Answers one call with the number of bytes that the head of the request asks for.
class Reply : public grpc::ServerGenericBidiReactor {
 public:
  Reply() { StartRead(&in_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (const size_t bytes = HeadOf(in_); bytes > 0) out_ = MessageOf(0, bytes);
    StartWriteAndFinish(&out_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer in_;
  grpc::ByteBuffer out_ = EmptyMessage();
};

class EchoService : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reply;
  }
};

// One of many calls under way.
struct Exchange {
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call;

  // Starts an exchange, which is deleted when `queue` returns it.
  static void Begin(grpc::GenericStub& stub, grpc::CompletionQueue* queue) {
    auto* exchange = new Exchange;
    exchange->call = stub.PrepareUnaryCall(&exchange->context, kMethod, EmptyMessage(), queue);
    exchange->call->StartCall();
    exchange->call->Finish(&exchange->reply, &exchange->status, exchange);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<EchoFloor>> EchoFloor::Start(const Environment& environment) {
  PSD_ASSIGN_OR_RETURN(auto server, Server::Start(environment, {environment.helper, "echo",
                                                                environment.network.host}));
  return std::unique_ptr<EchoFloor>(new EchoFloor(std::move(server)));
}

EchoFloor::EchoFloor(std::unique_ptr<Server> server)
    : server_(std::move(server)),
      stub_(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials())) {}

absl::Status EchoFloor::Call() {
  return CallWith(EmptyMessage());
}

absl::Status EchoFloor::Carry(size_t request_bytes, size_t answer_bytes) {
  return CallWith(MessageOf(answer_bytes, request_bytes));
}

absl::Status EchoFloor::CallMany(int calls, int in_flight) {
  int begun = 0;
  for (; begun < std::min(calls, in_flight); ++begun) Exchange::Begin(stub_, &queue_);
  bool failed = false;
  for (int answered = 0; answered < calls; ++answered) {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    const std::unique_ptr<Exchange> exchange(static_cast<Exchange*>(tag));
    failed = failed || !exchange->status.ok();
    if (begun++ < calls) Exchange::Begin(stub_, &queue_);
  }
  return failed ? absl::UnavailableError("echo floor: a call failed") : absl::OkStatus();
}

absl::Status EchoFloor::CallWith(const grpc::ByteBuffer& request) {
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  auto call = stub_.PrepareUnaryCall(&context, kMethod, request, &queue_);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue_.Next(&tag, &ok);
  if (!status.ok()) return absl::UnavailableError("echo floor: " + status.error_message());
  return absl::OkStatus();
}

int ServeEcho(const std::string& host) {
  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(host + ":0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("%s:%d\n", host.c_str(), port);
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  server->Shutdown();
  return 0;
}

}  // namespace psd::bench
