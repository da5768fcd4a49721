#include "core/carrier/grpc/grpc_core.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cstring>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/carrier/grpc/grpc_credentials.h"

namespace psd::carrier {

GrpcCore::GrpcCore(const GrpcCarrierOptions& options) : options_(options) {}

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
  auto credentials = options_.credentials != nullptr ? options_.credentials->ForChannel()
                                                     : grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(address, credentials, ArgumentsOfChannel(options_, window));
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

bool GrpcCore::Register(const LinkToken& token, std::shared_ptr<GrpcLink> link) {
  MutexLock lock(mutex_);
  if (shutting_down_) return false;
  return links_.emplace(token, std::move(link)).second;
}

void GrpcCore::Forget(const LinkToken& token) {
  std::shared_ptr<GrpcLink> last;  // destroyed without the lock
  MutexLock lock(mutex_);
  auto found = links_.find(token);
  if (found == links_.end()) return;
  last = std::move(found->second);
  links_.erase(found);
  if (links_.empty()) quiet_.NotifyAll();
}

std::shared_ptr<GrpcLink> GrpcCore::Find(const LinkToken& token) const {
  MutexLock lock(mutex_);
  auto found = links_.find(token);
  return found == links_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<GrpcLink>> GrpcCore::BeginShutdown() {
  MutexLock lock(mutex_);
  shutting_down_ = true;
  std::vector<std::shared_ptr<GrpcLink>> links;
  for (const auto& [token, link] : links_) links.push_back(link);
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
