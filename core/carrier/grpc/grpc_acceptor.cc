#include "core/carrier/grpc/grpc_acceptor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/carrier/frame.h"
#include "core/carrier/grpc/byte_buffer.h"
#include "core/carrier/grpc/grpc_link.h"

namespace psd::carrier {
namespace {

// The charge for an accepted stream without its messages, in bytes.
constexpr size_t kStreamBytes = size_t{16} << 10;
// The number of streams without a hello that are not charged to the memory budget.
constexpr size_t kUnchargedStreams = 64;

absl::StatusOr<HelloFrame> DecodeHello(const grpc::ByteBuffer& bytes, const Limits& limits) {
  ReceivedBytes chunks;
  if (!chunks.Open(bytes)) return absl::InvalidArgumentError("an unreadable network message");
  absl::StatusOr<std::optional<Frame>> frame = FrameDecoder(chunks.reader(), limits).Next();
  if (!frame.ok()) return frame.status();
  if (!frame->has_value() || !std::holds_alternative<HelloFrame>(**frame)) {
    return absl::InvalidArgumentError("a stream starts with a hello");
  }
  return std::get<HelloFrame>(**frame);
}

}  // namespace

void GrpcAcceptor::AcceptNext(grpc::AsyncGenericService* service,
                              grpc::ServerCompletionQueue* queue) {
  StreamGone gone = core_->CountStream();
  if (gone == nullptr) return;
  AcceptStream(
      service, queue,
      [self = shared_from_this(), service, queue](const std::shared_ptr<GrpcStream>& stream) {
        self->AcceptNext(service, queue);
        if (stream != nullptr) self->Greet(stream);
      },
      std::move(gone));
}

void GrpcAcceptor::Greet(const std::shared_ptr<GrpcStream>& stream) {
  stream->SetOwner(shared_from_this());
  const absl::Status admitted = Admit(*stream);
  if (!admitted.ok()) {
    stream->Decline({grpc::StatusCode::UNAVAILABLE, std::string(admitted.message())});
    return;
  }
  std::weak_ptr<GrpcAcceptor> weak = shared_from_this();
  // This is twice the time of a connection, so a connection without any hello ends as a whole
  // first.
  const absl::Duration patience = 2 * core_->options().handshake_timeout;
  core_->timers().RunAfter(patience, [weak, pending = std::weak_ptr<GrpcStream>(stream)] {
    auto self = weak.lock();
    auto late = pending.lock();
    if (self != nullptr && late != nullptr) late->AbortIfOwnedBy(self.get());
  });
  stream->Read();
}

absl::Status GrpcAcceptor::Admit(const GrpcStream& stream) {
  Silent silent{stream.Peer(), nullptr};
  MutexLock lock(mutex_);
  const auto found = silent_of_.find(silent.connection);
  if (found != silent_of_.end() && found->second >= kSilentOfConnection) {
    return WithRemedy(absl::ResourceExhaustedError(
                          absl::StrCat("the connection from ", silent.connection, " has ",
                                       found->second, " streams without a hello already")),
                      "send a hello on each stream at once");
  }
  if (silent_.size() >= kUnchargedStreams) {
    PSD_ASSIGN_OR_RETURN(silent.charge, core_->small_memory().headers->Charge(kStreamBytes));
  }
  ++silent_of_[silent.connection];
  silent_.emplace(&stream, std::move(silent));
  return absl::OkStatus();
}

void GrpcAcceptor::Forget(const GrpcStream* stream) {
  Silent gone;  // its charge is given back after the lock is released
  MutexLock lock(mutex_);
  const auto found = silent_.find(stream);
  if (found == silent_.end()) return;
  gone = std::move(found->second);
  silent_.erase(found);
  const auto of_connection = silent_of_.find(gone.connection);
  if (--of_connection->second == 0) silent_of_.erase(of_connection);
}

void GrpcAcceptor::OnRead(const std::shared_ptr<GrpcStream>& stream,
                          const grpc::ByteBuffer& bytes) {
  Forget(stream.get());
  absl::StatusOr<HelloFrame> hello = DecodeHello(bytes, core_->options().limits);
  if (!hello.ok()) {
    stream->Decline({grpc::StatusCode::INVALID_ARGUMENT, std::string(hello.status().message())});
    return;
  }
  unheard_.Heard(stream->Peer());
  if (hello->role == StreamRole::kControl) return GrpcLink::Accept(core_, stream, *hello, accept_);
  std::shared_ptr<GrpcLink> link = core_->Find(hello->token);
  if (link != nullptr && link->Adopt(stream, *hello)) return link->OnRead(stream, bytes);
  stream->Decline({grpc::StatusCode::NOT_FOUND, "no link has a place for this stream"});
}

}  // namespace psd::carrier
