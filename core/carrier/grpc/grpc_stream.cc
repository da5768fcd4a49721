#include "core/carrier/grpc/grpc_stream.h"

#include <utility>

#include "core/base/tsan.h"
#include "core/carrier/grpc/byte_buffer.h"
#include "core/carrier/grpc/channel_settings.h"

namespace psd::carrier {
namespace {

class AcceptedStream : public GrpcStream {
 public:
  AcceptedStream(StreamAccepted accepted, StreamGone gone)
      : gone_(std::move(gone)), accepted_(std::move(accepted)), stream_(&context_) {}

  void Start(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue) {
    service->RequestCall(&context_, &stream_, queue, queue, start_.Begin());
  }

  std::string Peer() const override { return context_.peer(); }

 private:
  Reader& reader() override { return stream_; }
  Writer& writer() override { return stream_; }
  void StartFinish(grpc::Status* status, void* tag) override { stream_.Finish(*status, tag); }
  void TryCancel() override { context_.TryCancel(); }

  void OnStartDone(bool ok) override {
    StreamAccepted accepted = std::move(accepted_);
    if (!ok) return;
    GrpcStream::OnStartDone(ok);
    if (context_.method() == kExchangeMethod) return accepted(shared_from_this());
    Decline({grpc::StatusCode::UNIMPLEMENTED, "psd serves no method " + context_.method()});
    accepted(nullptr);
  }

  const GoneNotice gone_;
  StreamAccepted accepted_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
};

}  // namespace

void* GrpcStream::Operation::Begin() {
  keep_ = stream_->shared_from_this();
  CompletionTag* tag = this;
  PSD_TSAN_RELEASE(tag);
  return tag;
}

void GrpcStream::Operation::Complete(bool ok) {
  std::shared_ptr<GrpcStream> keep = std::move(keep_);
  (keep.get()->*done_)(ok);
}

GrpcStream::GrpcStream()
    : start_(this, &GrpcStream::OnStartDone),
      read_(this, &GrpcStream::OnReadDone),
      write_(this, &GrpcStream::OnWriteDone),
      finish_(this, &GrpcStream::OnFinishDone) {}

bool GrpcStream::SetOwner(std::shared_ptr<StreamOwner> owner) {
  std::shared_ptr<StreamOwner> former;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (aborted_ || finishing_) return false;
  former = std::exchange(owner_, std::move(owner));
  return true;
}

void GrpcStream::Read() {
  {
    MutexLock lock(mutex_);
    if (aborted_ || read_ended_ || finishing_) return;
    reading_ = true;
  }
  received_.Clear();
  reader().Read(&received_, read_.Begin());
}

void GrpcStream::Write(const std::vector<Buffer>& parts) {
  {
    MutexLock lock(mutex_);
    if (aborted_ || read_ended_ || finishing_) return;
    writing_ = true;
  }
  grpc::ByteBuffer bytes = ToByteBuffer(parts);
  writer().Write(bytes, write_.Begin());
}

void GrpcStream::Abort() {
  {
    MutexLock lock(mutex_);
    if (!BeginAbort()) return;
  }
  TryCancel();
  MaybeFinish();
}

void GrpcStream::AbortIfOwnedBy(const StreamOwner* owner) {
  {
    MutexLock lock(mutex_);
    if (owner_.get() != owner || !BeginAbort()) return;
  }
  TryCancel();
  MaybeFinish();
}

bool GrpcStream::BeginAbort() {
  if (aborted_ || finishing_) return false;
  aborted_ = true;
  if (!reading_) read_ended_ = true;
  return true;
}

void GrpcStream::Decline(const grpc::Status& status) {
  {
    MutexLock lock(mutex_);
    if (read_ended_) return;
    read_ended_ = true;
    finish_status_ = status;
  }
  MaybeFinish();
}

void GrpcStream::OnStartDone(bool ok) {
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mutex_);
    started_ = true;
    if (!ok) read_ended_ = true;
    if (!read_ended_) owner = owner_;
  }
  if (owner != nullptr) owner->OnStarted(shared_from_this());
  MaybeFinish();
}

void GrpcStream::OnReadDone(bool ok) {
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (!ok || aborted_) read_ended_ = true;
    if (!read_ended_) owner = owner_;
  }
  if (owner != nullptr) owner->OnRead(shared_from_this(), received_);
  MaybeFinish();
}

void GrpcStream::OnWriteDone(bool ok) {
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok && !read_ended_) owner = owner_;
  }
  if (!ok) Abort();
  if (owner != nullptr) owner->OnWritten(shared_from_this());
  MaybeFinish();
}

void GrpcStream::MaybeFinish() {
  {
    MutexLock lock(mutex_);
    if (!started_ || !read_ended_ || reading_ || writing_ || finishing_) return;
    finishing_ = true;
  }
  StartFinish(&finish_status_, finish_.Begin());
}

void GrpcStream::OnFinishDone(bool) {
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mutex_);
    owner = std::move(owner_);
  }
  if (owner != nullptr) owner->OnEnded(shared_from_this(), finish_status_);
}

DialledStream::DialledStream(const std::shared_ptr<grpc::Channel>& channel, StreamGone gone)
    : gone_(std::move(gone)), stub_(channel) {}

void DialledStream::Start(grpc::CompletionQueue* queue) {
  stream_ = stub_.PrepareCall(&context_, kExchangeMethod, queue);
  stream_->StartCall(start_.Begin());
}

std::shared_ptr<DialledStream> NewDialledStream(const std::shared_ptr<grpc::Channel>& channel,
                                                std::shared_ptr<StreamOwner> owner,
                                                StreamGone gone) {
  auto stream = std::make_shared<DialledStream>(channel, std::move(gone));
  stream->SetOwner(std::move(owner));
  return stream;
}

void AcceptStream(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue,
                  StreamAccepted accepted, StreamGone gone) {
  auto stream = std::make_shared<AcceptedStream>(std::move(accepted), std::move(gone));
  stream->Start(service, queue);
}

}  // namespace psd::carrier
