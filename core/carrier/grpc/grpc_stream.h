#pragma once

// One bidirectional gRPC stream of raw bytes, dialled or accepted.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::carrier {

class GrpcStream;

// Receives the events of a stream, on a poller thread, without a lock held: OnStarted at most once,
// then OnRead and OnWritten once for every Read and Write that succeeded, then OnEnded exactly once
// and nothing more. OnRead and OnWritten may overlap each other. Calls of OnWritten do not overlap.
// Calls of OnRead overlap only if OnRead itself calls Read: then the next one may begin before it
// returns.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  virtual void OnStarted(const std::shared_ptr<GrpcStream>& stream) = 0;
  virtual void OnRead(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes) = 0;
  virtual void OnWritten(const std::shared_ptr<GrpcStream>& stream) = 0;
  // `status` is gRPC's status; it is OK if the peer ended the stream in order.
  virtual void OnEnded(const std::shared_ptr<GrpcStream>& stream, const grpc::Status& status) = 0;
};

// Thread-safe. Keeps itself and its owner alive while an operation is under way. After Abort a
// stream ends soon.
class GrpcStream : public std::enable_shared_from_this<GrpcStream> {
 public:
  virtual ~GrpcStream() = default;
  GrpcStream(const GrpcStream&) = delete;
  GrpcStream& operator=(const GrpcStream&) = delete;

  // Sets the owner, which is called from now on. Requires: no operation of an accepted stream is
  // under way. Returns false and changes nothing if the stream was aborted or has ended, because
  // the new owner would not be told of that.
  bool SetOwner(std::shared_ptr<StreamOwner> owner) PSD_EXCLUDES(mutex_);

  // Asks for one message. Requires: no message is being asked for. Does nothing on a stream that is
  // ending.
  void Read() PSD_EXCLUDES(mutex_);

  // Sends one message. Requires: no message is being sent. Does nothing on a stream that is ending.
  void Write(const std::vector<Buffer>& parts) PSD_EXCLUDES(mutex_);

  // Cancels the stream. Messages that the peer has not read yet may be lost.
  void Abort() PSD_EXCLUDES(mutex_);
  // As Abort, unless the stream has another owner by now.
  void AbortIfOwnedBy(const StreamOwner* owner) PSD_EXCLUDES(mutex_);

  // Ends an accepted stream in order and sends `status` to the peer. Requires: no message is being
  // asked for.
  void Decline(const grpc::Status& status) PSD_EXCLUDES(mutex_);

  // Returns the peer's address as gRPC prints it, "ipv4:127.0.0.1:41234", once the stream has
  // started.
  virtual std::string Peer() const = 0;

 protected:
  // One kind of operation. At most one operation of a kind is under way.
  class Operation : public CompletionTag {
   public:
    Operation(GrpcStream* stream, void (GrpcStream::*done)(bool)) : stream_(stream), done_(done) {}
    // Returns the tag. To be called right before the operation is started with it.
    void* Begin();
    void Complete(bool ok) override;

   private:
    GrpcStream* const stream_;
    void (GrpcStream::*const done_)(bool);
    std::shared_ptr<GrpcStream> keep_;  // the stream itself, set while the operation is under way
  };

  using Reader = grpc::internal::AsyncReaderInterface<grpc::ByteBuffer>;
  using Writer = grpc::internal::AsyncWriterInterface<grpc::ByteBuffer>;

  GrpcStream();

  virtual Reader& reader() = 0;
  virtual Writer& writer() = 0;
  // A dialled stream receives `*status` from the peer; an accepted stream sends `*status` to it.
  virtual void StartFinish(grpc::Status* status, void* tag) = 0;
  virtual void TryCancel() = 0;

  virtual void OnStartDone(bool ok);

  Operation start_;

 private:
  void OnReadDone(bool ok) PSD_EXCLUDES(mutex_);
  void OnWriteDone(bool ok) PSD_EXCLUDES(mutex_);
  void OnFinishDone(bool ok) PSD_EXCLUDES(mutex_);
  // Returns false if there is nothing left to abort.
  bool BeginAbort() PSD_REQUIRES(mutex_);
  // Finishes the stream once no operation is under way and nothing more will be read.
  void MaybeFinish() PSD_EXCLUDES(mutex_);

  Operation read_;
  Operation write_;
  Operation finish_;
  grpc::ByteBuffer received_;
  grpc::Status finish_status_;

  Mutex mutex_;  // leaf
  // Receives the events of this stream. Null after OnEnded.
  std::shared_ptr<StreamOwner> owner_ PSD_GUARDED_BY(mutex_);
  bool started_ PSD_GUARDED_BY(mutex_) = false;
  bool reading_ PSD_GUARDED_BY(mutex_) = false;
  bool writing_ PSD_GUARDED_BY(mutex_) = false;
  bool aborted_ PSD_GUARDED_BY(mutex_) = false;
  bool read_ended_ PSD_GUARDED_BY(mutex_) = false;
  bool finishing_ PSD_GUARDED_BY(mutex_) = false;
};

// Called when a stream and everything that gRPC kept for it are destroyed.
using StreamGone = std::function<void()>;

// Calls `gone` in its destructor. It is the first member of a stream, so it is destroyed last.
class GoneNotice {
 public:
  explicit GoneNotice(StreamGone gone) : gone_(std::move(gone)) {}
  ~GoneNotice() { gone_(); }
  GoneNotice(const GoneNotice&) = delete;
  GoneNotice& operator=(const GoneNotice&) = delete;

 private:
  const StreamGone gone_;
};

// A stream that this end opens.
class DialledStream : public GrpcStream {
 public:
  DialledStream(const std::shared_ptr<grpc::Channel>& channel, StreamGone gone);
  // Starts the stream; OnStarted or OnEnded follows. Must be called once, even after Abort.
  void Start(grpc::CompletionQueue* queue);
  std::string Peer() const override { return context_.peer(); }

 private:
  Reader& reader() override { return *stream_; }
  Writer& writer() override { return *stream_; }
  void StartFinish(grpc::Status* status, void* tag) override { stream_->Finish(status, tag); }
  void TryCancel() override { context_.TryCancel(); }

  const GoneNotice gone_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

// Returns a stream with an owner, which is not started yet.
std::shared_ptr<DialledStream> NewDialledStream(const std::shared_ptr<grpc::Channel>& channel,
                                                std::shared_ptr<StreamOwner> owner,
                                                StreamGone gone);

// Gets a stream that a peer opened, or null if the peer called a method that psd does not serve,
// which has been answered already.
using StreamAccepted = std::function<void(const std::shared_ptr<GrpcStream>& stream)>;

// Waits for one stream that a peer opens on `service`, then calls `accepted`, which must set the
// owner and read. When the server shuts down, `accepted` is dropped without a call.
void AcceptStream(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue,
                  StreamAccepted accepted, StreamGone gone);

}  // namespace psd::carrier
