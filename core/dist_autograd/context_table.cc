#include "core/dist_autograd/context_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::dist_autograd {
namespace {

absl::Status PassRuns(const Pass& pass) {
  return WithRemedy(
      absl::FailedPreconditionError(absl::StrCat("a backward pass is running in autograd context ",
                                                 pass.info().context.ToString())),
      "wait for it, or use a context of its own");
}

}  // namespace

absl::Status ContextTable::NotFound(GlobalId context) const {
  return absl::NotFoundError(absl::StrCat("could not find autograd context ", context.ToString(),
                                          " on ", self_.name,
                                          ": it was released, or its creator is gone"));
}

std::shared_ptr<ContextState> ContextTable::Create() {
  auto state = std::make_shared<ContextState>(ids_.Next(), ids_, memory_);
  MutexLock lock(mutex_);
  entries_[state->id()].state = state;
  return state;
}

absl::StatusOr<std::shared_ptr<ContextState>> ContextTable::Find(GlobalId context) const {
  MutexLock lock(mutex_);
  auto it = entries_.find(context);
  if (it == entries_.end()) return NotFound(context);
  return it->second.state;
}

absl::StatusOr<std::shared_ptr<ContextState>> ContextTable::FindOrJoin(GlobalId context,
                                                                       Origin origin) {
  MutexLock lock(mutex_);
  auto it = entries_.find(context);
  if (it != entries_.end()) return it->second.state;
  if (context.incarnation == self_.incarnation || released_.Contains(context)) {
    return NotFound(context);
  }
  if (ended_.Contains(origin)) {
    return absl::AbortedError("the session that brought this context has ended");
  }
  if (entries_.size() >= kMaxContexts) {
    return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                          entries_.size(), " autograd contexts are open", " on ", self_.name)),
                      "release some");
  }
  PSD_RETURN_IF_ERROR(Charge(origin));
  const bool paid_for = memory_ != nullptr && held_.at(origin).charge.bytes() <=
                                                  kOwnContexts * ContextState::kContextBytes;
  Entry& entry = entries_[context];
  entry.state = std::make_shared<ContextState>(context, ids_, memory_,
                                               paid_for ? ContextState::kModestBytes : 0);
  entry.origin = origin;
  return entry.state;
}

absl::Status ContextTable::Charge(Origin origin) {
  if (memory_ == nullptr) return absl::OkStatus();
  Held& held = held_[origin];
  const absl::Status charged = held.charge.Add(*memory_->transit(), ContextState::kContextBytes);
  if (held.charge.bytes() == 0) held_.erase(origin);
  return charged.ok()
             ? charged
             : Annotate(charged, absl::StrCat("one more autograd context on ", self_.name));
}

void ContextTable::Credit(const Origin& origin) {
  const auto held = held_.find(origin);
  if (held == held_.end()) return;
  held->second.charge.Subtract(ContextState::kContextBytes);
  if (held->second.charge.bytes() == 0) held_.erase(held);
}

void ContextTable::Remember(GlobalId released) {
  if (released.incarnation == self_.incarnation) return;  // no request can join it
  released_.Add(released);
}

ContextTable::Erased ContextTable::Erase(GlobalId context) {
  MutexLock lock(mutex_);
  Remember(context);
  auto it = entries_.find(context);
  if (it == entries_.end()) return {};
  Erased erased{std::move(it->second.state), std::move(it->second.pass)};
  Credit(it->second.origin);
  entries_.erase(it);
  return erased;
}

void ContextTable::EraseEntry(absl::flat_hash_map<GlobalId, Entry>::iterator entry,
                              std::vector<Erased>& erased) {
  Remember(entry->first);
  erased.push_back({std::move(entry->second.state), std::move(entry->second.pass)});
  Credit(entry->second.origin);
  entries_.erase(entry);
}

// A context that joins after the worker's later session has begun must not be taken for one of the
// ended session. So the contexts that the worker created are listed first, and `has_later` is
// called after that.
std::vector<ContextTable::Erased> ContextTable::EraseOf(Origin session,
                                                        absl::FunctionRef<bool()> has_later) {
  std::vector<Erased> erased;
  if (session.peer == self_.incarnation || FaultOn("contexts_outlive_their_session")) return erased;
  std::vector<std::shared_ptr<ContextState>> created;
  {
    MutexLock lock(mutex_);
    ended_.Add(session);
    for (auto it = entries_.begin(); it != entries_.end();) {
      const auto entry = it++;
      const Origin& origin = entry->second.origin;
      if (origin == session) {
        EraseEntry(entry, erased);
      } else if (entry->first.incarnation == session.peer && origin.peer != session.peer) {
        created.push_back(entry->second.state);
      }
    }
  }
  if (created.empty() || has_later()) return erased;
  MutexLock lock(mutex_);
  for (const std::shared_ptr<ContextState>& state : created) {
    const auto entry = entries_.find(state->id());
    if (entry != entries_.end() && entry->second.state == state) EraseEntry(entry, erased);
  }
  return erased;
}

absl::StatusOr<std::shared_ptr<Pass>> ContextTable::JoinPass(
    GlobalId context, GlobalId id, absl::FunctionRef<std::shared_ptr<Pass>()> make,
    std::shared_ptr<Pass>* superseded) {
  absl::StatusOr<std::shared_ptr<Pass>> joined = TryJoinPass(context, id, nullptr, superseded);
  if (!joined.ok() || *joined != nullptr) return joined;
  return TryJoinPass(context, id, make(), superseded);
}

absl::StatusOr<std::shared_ptr<Pass>> ContextTable::TryJoinPass(GlobalId context, GlobalId id,
                                                                std::shared_ptr<Pass> made,
                                                                std::shared_ptr<Pass>* superseded) {
  MutexLock lock(mutex_);
  auto it = entries_.find(context);
  if (it == entries_.end()) return NotFound(context);
  Entry& entry = it->second;
  auto ended = entry.ended.find(id.incarnation);
  if (ended != entry.ended.end() && id.counter <= ended->second) {
    return absl::AbortedError(absl::StrCat("pass ", id.ToString(), " has ended on ", self_.name));
  }
  if (entry.pass != nullptr) {
    const GlobalId running = entry.pass->info().pass;
    if (running == id) return entry.pass;
    if (running.incarnation != id.incarnation || running.counter > id.counter) {
      return PassRuns(*entry.pass);
    }
  }
  if (id.incarnation == self_.incarnation) {
    return absl::AbortedError(
        absl::StrCat("pass ", id.ToString(), " does not run on ", self_.name));
  }
  if (made == nullptr) return made;
  *superseded = std::exchange(entry.pass, std::move(made));
  return entry.pass;
}

absl::StatusOr<std::shared_ptr<Pass>> ContextTable::StartPass(
    const std::shared_ptr<ContextState>& context,
    absl::FunctionRef<std::shared_ptr<Pass>(GlobalId id)> make) {
  MutexLock lock(mutex_);
  auto it = entries_.find(context->id());
  if (it == entries_.end() || it->second.state != context) return NotFound(context->id());
  if (it->second.pass != nullptr && !FaultOn("passes_overlap")) return PassRuns(*it->second.pass);
  it->second.pass = make(ids_.Next());
  return it->second.pass;
}

std::shared_ptr<Pass> ContextTable::EndPass(GlobalId context, GlobalId id) {
  MutexLock lock(mutex_);
  auto it = entries_.find(context);
  if (it == entries_.end()) return nullptr;
  Entry& entry = it->second;
  if (entry.ended.size() < kMaxInitiators || entry.ended.contains(id.incarnation)) {
    uint64_t& last = entry.ended[id.incarnation];
    last = std::max(last, id.counter);
  }
  if (entry.pass == nullptr || entry.pass->info().pass != id) return nullptr;
  return std::move(entry.pass);
}

size_t ContextTable::NumContexts() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

size_t ContextTable::NumPasses() const {
  return Passes().size();
}

std::vector<std::shared_ptr<ContextState>> ContextTable::All() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ContextState>> all;
  for (const auto& [id, entry] : entries_) all.push_back(entry.state);
  return all;
}

std::vector<std::shared_ptr<Pass>> ContextTable::Passes() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Pass>> passes;
  for (const auto& [id, entry] : entries_) {
    if (entry.pass != nullptr) passes.push_back(entry.pass);
  }
  return passes;
}

}  // namespace psd::dist_autograd
