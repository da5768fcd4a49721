#include "core/rpc/registrar/peer_directory.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/nearest_name.h"
#include "core/base/remedy.h"

namespace psd::rpc {

std::string PeerDirectory::registrar() const {
  MutexLock lock(mutex_);
  return registrar_;
}

void PeerDirectory::SetRegistrar(const std::string& name) {
  MutexLock lock(mutex_);
  registrar_ = name;
}

Future<Unit> PeerDirectory::MakeKnown(const std::string& worker) {
  const rpc::Reach reach = agent_.ReachOf(worker);
  if (reach == rpc::Reach::kUnknown) return Find(worker);
  if (reach == rpc::Reach::kLost) {
    {
      MutexLock lock(mutex_);
      // A configured address stays: it may be the only one that works from here.
      if (!found_.contains(worker) || !searching_.insert(worker).second)
        return Future<Unit>::Ready(Unit{});
    }
    Find(worker).OnReady([this, worker](const absl::StatusOr<Unit>&) {
      MutexLock lock(mutex_);
      searching_.erase(worker);
    });
  }
  return Future<Unit>::Ready(Unit{});
}

Future<Unit> PeerDirectory::Find(const std::string& worker) {
  Promise<Unit> found;
  AskAndFind(worker, /*again=*/false, found);
  return found.future();
}

void PeerDirectory::AskAndFind(const std::string& worker, bool again, const Promise<Unit>& found) {
  const std::string asked = registrar();
  if (asked.empty()) {
    found.Set(
        WithRemedy(absl::NotFoundError(absl::StrCat(agent_.self().name, " does not know worker '",
                                                    worker, "', and there is no registrar to ask")),
                   "name one, or connect the two"));
    return;
  }
  const Question question = Ask(asked);
  question.world.OnReady([this, worker, found, may_be_old = !question.is_new && !again](
                             const absl::StatusOr<World>& world) {
    if (!world.ok()) return static_cast<void>(found.Set(world.status()));
    FindIn(*world, worker, may_be_old, found);
  });
}

PeerDirectory::Question PeerDirectory::Ask(const std::string& registrar) {
  Promise<World> answer;
  {
    MutexLock lock(mutex_);
    if (asking_.has_value()) return {*asking_, false};
    asking_ = answer.future();
  }
  AskWorld(agent_, registrar, {}).OnReady([this, answer](const absl::StatusOr<World>& world) {
    {
      MutexLock lock(mutex_);
      asking_.reset();
    }
    answer.Set(world);
  });
  return {answer.future(), true};
}

void PeerDirectory::FindIn(const World& world, const std::string& worker, bool may_be_old,
                           const Promise<Unit>& found) {
  NearestNameFinder nearest(worker);
  for (const WorldMember& member : world.members) {
    if (member.name != agent_.self().name) nearest.Consider(member.name);
    if (member.name != worker) continue;
    if (member.address.empty()) {
      found.Set(WithRemedy(absl::UnavailableError(
                               absl::StrCat(worker, " does not listen, so it cannot be called by ",
                                            agent_.self().name, ", which it is not connected to")),
                           "let one of the two listen"));
      return;
    }
    agent_.AddPeer(member.name, member.address);
    {
      MutexLock lock(mutex_);
      found_.insert(worker);
    }
    found.Set(Unit{});
    return;
  }
  // The worker may have joined after the shared question was asked. The next question, no matter
  // which call asks it, is newer than this search.
  if (may_be_old) return AskAndFind(worker, /*again=*/true, found);
  found.Set(absl::NotFoundError(absl::StrCat("the registrar ", registrar(), " knows no worker '",
                                             worker, "'", DidYouMean(nearest.nearest()))));
}

}  // namespace psd::rpc
