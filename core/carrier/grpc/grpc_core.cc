#include "core/carrier/grpc/grpc_core.h"

#include <grpcpp/alarm.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cstring>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::carrier {

namespace {

// The charge for an accepted link with its stream, without its messages.
constexpr size_t kLinkBytes = size_t{16} << 10;
// The number of accepted links that are not charged.
constexpr size_t kUnchargedLinks = 64;

// A task that waits for its time in a completion queue, and is deleted after it has run.
class DelayedTask final : public CompletionTag {
 public:
  DelayedTask(Task task, StreamGone gone) : task_(std::move(task)), gone_(std::move(gone)) {}

  void Start(grpc::CompletionQueue* queue, absl::Duration delay) {
    const gpr_timespec span = gpr_time_from_micros(absl::ToInt64Microseconds(delay), GPR_TIMESPAN);
    CompletionTag* tag = this;
    PSD_TSAN_RELEASE(tag);
    alarm_.Set(queue, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span), tag);
  }
  void Complete(bool) override {
    std::unique_ptr<DelayedTask> self(this);
    const StreamGone gone = std::move(gone_);
    std::exchange(task_, nullptr)();
    self.reset();  // destroyed with its alarm, before the carrier may stop
    gone();
  }

 private:
  Task task_;
  StreamGone gone_;
  grpc::Alarm alarm_;
};

}  // namespace

GrpcCore::GrpcCore(const GrpcCarrierOptions& options)
    : options_(options),
      bulk_memory_{options.allocator, options.memory->transit()},
      small_memory_{options.memory->essential(), options.memory->essential()},
      waiting_{options.line != nullptr ? options.line : std::make_shared<WaitingLine>(),
               options.room_patience},
      most_unread_bytes_(options.memory->limit_bytes() == 0 ? SIZE_MAX
                                                            : ReceiveQuotaBytes(options) / 2) {}

std::optional<GrpcCore::Unread> GrpcCore::KeepUnread(size_t bytes) {
  Unread unread(shared_from_this(), bytes);
  if (unread_bytes_.fetch_add(bytes) + bytes > most_unread_bytes_) return std::nullopt;
  return unread;
}

void GrpcCore::RunAfter(absl::Duration delay, Task task) {
  StreamGone gone = CountStream();
  if (gone == nullptr) return;
  auto* delayed = new DelayedTask(std::move(task), std::move(gone));  // deletes itself
  delayed->Start(dial_queue(), delay);
}

absl::Status GrpcCore::ReadyToDial() {
  MutexLock lock(mutex_);
  if (is_quiet_) return absl::UnavailableError("this carrier was shut down");
  if (!pollers_.empty()) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<Poller> poller, Poller::Create(options_.poll_threads));
  poller->Watch(std::make_unique<grpc::CompletionQueue>());
  pollers_.push_back(std::move(poller));
  return absl::OkStatus();
}

grpc::CompletionQueue* GrpcCore::dial_queue() {
  MutexLock lock(mutex_);
  return pollers_.front()->queue();
}

void GrpcCore::Keep(std::unique_ptr<Poller> poller) {
  MutexLock lock(mutex_);
  pollers_.push_back(std::move(poller));
}

std::shared_ptr<grpc::Channel> GrpcCore::NewChannel(const std::string& address,
                                                    Window window) const {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   ArgumentsOfChannel(options_, window));
}

StreamGone GrpcCore::CountStream() {
  MutexLock lock(mutex_);
  if (is_quiet_) return nullptr;
  ++streams_;
  return [self = shared_from_this()] {
    MutexLock lock(self->mutex_);
    if (--self->streams_ == 0) self->quiet_.NotifyAll();
  };
}

absl::Status GrpcCore::Register(const LinkToken& token, std::shared_ptr<GrpcLink> link,
                                const std::string& connection) {
  MutexLock lock(mutex_);
  if (shutting_down_) return absl::UnavailableError("this carrier was shut down");
  if (links_.contains(token)) return absl::UnavailableError("the peer has this link already");
  Registered registered{std::move(link), connection, nullptr};
  if (!connection.empty()) {
    const auto brought = brought_.find(connection);
    if (brought != brought_.end() && brought->second >= kLinksOfConnection) {
      return WithRemedy(absl::ResourceExhaustedError(
                            absl::StrCat("the connection from ", connection, " has brought ",
                                         brought->second, " links already")),
                        "use a connection for each");
    }
    if (links_.size() >= kUnchargedLinks) {
      PSD_ASSIGN_OR_RETURN(registered.charge, small_memory_.headers->Charge(kLinkBytes));
    }
    ++brought_[connection];
  }
  links_.emplace(token, std::move(registered));
  return absl::OkStatus();
}

void GrpcCore::Forget(const LinkToken& token) {
  Registered last;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  auto found = links_.find(token);
  if (found == links_.end()) return;
  last = std::move(found->second);
  links_.erase(found);
  if (!last.connection.empty()) {
    const auto brought = brought_.find(last.connection);
    if (--brought->second == 0) brought_.erase(brought);
  }
  if (links_.empty()) quiet_.NotifyAll();
}

std::shared_ptr<GrpcLink> GrpcCore::Find(const LinkToken& token) const {
  MutexLock lock(mutex_);
  auto found = links_.find(token);
  return found == links_.end() ? nullptr : found->second.link;
}

std::vector<std::shared_ptr<GrpcLink>> GrpcCore::BeginShutdown() {
  MutexLock lock(mutex_);
  shutting_down_ = true;
  std::vector<std::shared_ptr<GrpcLink>> links;
  for (const auto& [token, registered] : links_) links.push_back(registered.link);
  return links;
}

void GrpcCore::AwaitQuiet() {
  MutexLock lock(mutex_);
  while (streams_ > 0 || !links_.empty()) quiet_.Wait(mutex_);
  is_quiet_ = true;
}

void GrpcCore::Stop() {
  timers_.Stop();
  std::vector<std::unique_ptr<Poller>> pollers;
  {
    MutexLock lock(mutex_);
    pollers.swap(pollers_);
  }
  for (const std::unique_ptr<Poller>& poller : pollers) poller->Stop();
}

LinkToken NewLinkToken() {
  LinkToken token;
  for (size_t half = 0; half < 2; ++half) {
    uint64_t random = NewIncarnation();
    std::memcpy(token.data() + 8 * half, &random, sizeof(random));
  }
  return token;
}

}  // namespace psd::carrier
