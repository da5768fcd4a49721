#include "server/services/reflection_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <functional>

#include "server/services/member_tag.h"
#include "server/services/raw_messages.h"
#include "server/services/reflection_answer.h"

namespace psd::server {

using grpc::reflection::v1alpha::ServerReflectionRequest;

// One stream, from its request on. Exactly one operation is outstanding; when the last one is over,
// the stream deletes itself.
class ReflectionService::Stream {
 public:
  // Requests the next stream if the host still takes calls.
  static void Await(ReflectionService& reflection, carrier::ServiceHost& host) {
    std::function<void()> gone = host.CountCall();
    if (gone == nullptr) return;
    auto* stream = new Stream(reflection, host, std::move(gone));
    reflection.service_.RequestServerReflectionInfo(&stream->context_, &stream->stream_,
                                                    host.queue(), host.queue(),
                                                    stream->requested_.Start());
  }

 private:
  Stream(ReflectionService& reflection, carrier::ServiceHost& host, std::function<void()> gone)
      : reflection_(reflection), host_(host), gone_(std::move(gone)) {}

  // Called when a stream has come, or with false when the server shuts down.
  void Requested(bool ok) {
    if (!ok) return Delete();
    host_.OnCall(context_);
    Await(reflection_, host_);
    stream_.Read(&received_, read_.Start());
  }

  // Called with false when the client sends no more requests or has gone; Finish works in both
  // cases.
  void Read(bool ok) {
    if (!ok) return stream_.Finish(grpc::Status::OK, finished_.Start());
    ServerReflectionRequest request;
    grpc::ByteBuffer answer;
    grpc::Status status = ParseSmall(received_, request);
    if (status.ok()) status = ToBytes(AnswerReflection(request, reflection_.services_), answer);
    if (!status.ok()) return stream_.Finish(status, finished_.Start());
    stream_.Write(answer, written_.Start());
  }

  void Written(bool ok) {
    if (!ok) return stream_.Finish(grpc::Status::CANCELLED, finished_.Start());
    stream_.Read(&received_, read_.Start());
  }

  void Finished(bool) { Delete(); }

  void Delete() {
    const std::function<void()> gone = std::move(gone_);
    delete this;
    gone();
  }

  ReflectionService& reflection_;
  carrier::ServiceHost& host_;
  grpc::ServerContext context_;
  grpc::ByteBuffer received_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  MemberTag<Stream> requested_{*this, &Stream::Requested};
  MemberTag<Stream> read_{*this, &Stream::Read};
  MemberTag<Stream> written_{*this, &Stream::Written};
  MemberTag<Stream> finished_{*this, &Stream::Finished};
  std::function<void()> gone_;
};

void ReflectionService::Serve(carrier::ServiceHost& host) {
  Stream::Await(*this, host);
}

}  // namespace psd::server
