#include "tools/cli/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/cli/table.h"

namespace psd::cli {
namespace {

// An encoded grpc.health.v1.HealthCheckResponse whose only field, the status, is SERVING.
constexpr absl::string_view kServing("\x08\x01", 2);

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

Connection::Connection(const Options& options) : options_(options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  channel_ =
      grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::ParameterService::NewStub(channel_);
}

void Connection::SetDeadline(grpc::ClientContext& context) const {
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(options_.timeout));
}

absl::Status Connection::ToStatus(const grpc::Status& status,
                                  const grpc::ClientContext& context) const {
  if (status.ok()) return absl::OkStatus();
  std::string text = Printable(status.error_message());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    text = absl::StrCat("cannot reach ", options_.address, ": ", text,
                        "; is psd running there? (--address HOST:PORT names another)");
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    text = absl::StrCat(options_.address, " did not answer within ",
                        absl::FormatDuration(options_.timeout), " (--timeout)");
  } else if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    text = absl::StrCat(options_.address, " is no psd of this version: ", text);
  }
  const auto& metadata = context.GetServerTrailingMetadata();
  auto remedy = metadata.find("psd-remedy");
  if (remedy != metadata.end()) {
    absl::StrAppend(&text, "; ",
                    Printable(absl::string_view(remedy->second.data(), remedy->second.size())));
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
}

absl::Status Connection::CheckHealth() {
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  // An encoded request whose only field, the service's name, is empty: it asks for the whole
  // server.
  const grpc::Slice all_services(std::string("\x0a\0", 2));
  const grpc::ByteBuffer request(&all_services, 1);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  if (!status.ok()) return ToStatus(status, context);
  if (BytesOf(reply) == kServing) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(options_.address, " answers that it does not serve: it is stopping"));
}

}  // namespace psd::cli
