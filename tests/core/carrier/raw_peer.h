#pragma once

// A peer whose frames of the carrier's protocol are written by the test, correctly or not.

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

namespace psd::carrier {

// A client that sends arbitrary bytes on one stream.
class RawPeer {
 public:
  RawPeer(const std::string& address, const std::string& method)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(nullptr);
    Await();
  }
  ~RawPeer() {
    context_.TryCancel();
    Finish();
    queue_.Shutdown();
    while (Await()) {
    }
  }

  void Send(const std::string& bytes) {
    grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Await();
  }
  // Waits for a message. Returns false if the server has ended the stream.
  bool Receive() {
    grpc::ByteBuffer bytes;
    stream_->Read(&bytes, nullptr);
    return Await();
  }
  // Ends the stream. May be called while another thread waits.
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    if (finished_) return status_;
    finished_ = true;
    stream_->Finish(&status_, nullptr);
    Await();
    return status_;
  }

 private:
  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
  grpc::Status status_;
};

}  // namespace psd::carrier
