#include "core/services/collectives/collective_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "proto/psd/v1/collective.pb.h"

namespace psd::services {
namespace {

// The methods between ranks are in collective_group.h, which calls them.
std::string GenerationName(uint64_t generation) {
  return absl::StrCat("generation ", IncarnationToString(generation), " of a group");
}

// Frees the message of a call that may wait for long before it is answered. Errors:
// INVALID_ARGUMENT for a message that carries more than its fields.
absl::Status Shorten(rpc::ServerCall& call) {
  if (!call.payload().buffers.empty())
    return absl::InvalidArgumentError(absl::StrCat(call.method(), " takes no buffers"));
  call.ForgetMessage();
  return absl::OkStatus();
}

}  // namespace

CollectiveService::CollectiveService(CollectiveGroup::Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kEnterCall, this, &CollectiveService::ServeEnter);
  rpc::Serve(uses_.agent, kSendPiece, this, &CollectiveService::ServePiece);
  rpc::Serve(uses_.agent, kTakeTensor, this, &CollectiveService::ServeTake);
  rpc::Serve(uses_.agent, kWatchRank, this, &CollectiveService::ServeWatch);
  uses_.agent.OnSessionEnded(
      [this](const rpc::PeerInfo& peer, uint64_t epoch) { SessionEnded(peer, epoch); });
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> CollectiveService::Make(GroupMembers members) {
  const uint64_t generation = members.generation;
  auto group = std::make_shared<CollectiveGroup>(uses_, std::move(members), PlanLimits{}, ended_);
  MutexLock lock(mutex_);
  if (closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", uses_.agent.self().name, " has been shut down"));
  }
  absl::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  groups_[generation] = group;
  return group;
}

std::vector<CollectiveService::GroupPtr> CollectiveService::Groups() {
  std::vector<GroupPtr> groups;
  MutexLock lock(mutex_);
  for (const auto& [generation, weak] : groups_) {
    if (GroupPtr group = weak.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

void CollectiveService::Close(absl::Duration limit) {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  const absl::Time until = Clock::Steady().Now() + limit;
  for (const GroupPtr& group : Groups())
    group->Close(std::max(until - Clock::Steady().Now(), absl::ZeroDuration()));
}

absl::StatusOr<CollectiveService::Sender> CollectiveService::Find(const rpc::ServerCall& call,
                                                                  uint64_t generation) {
  Sender sender;
  {
    MutexLock lock(mutex_);
    const auto found = groups_.find(generation);
    if (found != groups_.end()) sender.group = found->second.lock();
  }
  if (sender.group == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(uses_.agent.self().name, " is not in ",
                                                      GenerationName(generation), ", or has left"));
  }
  const std::vector<rpc::PeerInfo>& workers = sender.group->members().workers;
  const auto worker = std::find(workers.begin(), workers.end(), call.caller());
  if (worker == workers.end() || *worker == uses_.agent.self()) {
    return absl::PermissionDeniedError(
        absl::StrCat(call.caller().name, " is no other rank of ", GenerationName(generation)));
  }
  sender.rank = static_cast<int>(worker - workers.begin());
  return sender;
}

absl::Status CollectiveService::ServeEnter(const rpc::CallPtr& call, v1::CollectiveEnter request) {
  PSD_ASSIGN_OR_RETURN(const Sender sender, Find(*call, request.generation()));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  return sender.group->ServeEnter(sender.rank, request, std::move(call->payload().buffers));
}

absl::Status CollectiveService::ServePiece(const rpc::CallPtr& call, v1::CollectivePiece request) {
  PSD_ASSIGN_OR_RETURN(const Sender sender, Find(*call, request.generation()));
  PSD_RETURN_IF_ERROR(rpc::BeginApply(*call));
  return sender.group->ServePiece(sender.rank, request, std::move(call->payload().buffers));
}

absl::Status CollectiveService::ServeTake(const rpc::Answer<rpc::Contents>& answer,
                                          v1::CollectiveTake request) {
  PSD_ASSIGN_OR_RETURN(const Sender sender, Find(*answer.call(), request.generation()));
  PSD_RETURN_IF_ERROR(Shorten(*answer.call()));
  return sender.group->ServeTake(sender.rank, request, answer);
}

absl::Status CollectiveService::ServeWatch(const rpc::Answer<v1::CollectiveEnd>& answer,
                                           v1::CollectiveWatch request) {
  PSD_ASSIGN_OR_RETURN(const Sender sender, Find(*answer.call(), request.generation()));
  PSD_RETURN_IF_ERROR(Shorten(*answer.call()));
  sender.group->ServeWatch(sender.rank, answer);
  return absl::OkStatus();
}

void CollectiveService::SessionEnded(const rpc::PeerInfo& peer, uint64_t epoch) {
  for (const GroupPtr& group : Groups()) {
    const std::vector<rpc::PeerInfo>& workers = group->members().workers;
    const auto worker = std::find(workers.begin(), workers.end(), peer);
    if (worker != workers.end())
      group->SessionEnded(static_cast<int>(worker - workers.begin()), epoch);
  }
}

}  // namespace psd::services
