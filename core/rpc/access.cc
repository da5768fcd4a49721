#include "core/rpc/access.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::rpc {
namespace {

// The most permissions that are remembered. If there are more, all are forgotten, and each is asked
// for once more.
constexpr size_t kMaxPermissions = 16'384;

// Whether a call with this right may leave something on this worker, or runs here.
bool LeavesSomething(Right right) {
  return right == Right::kCreate || right == Right::kCall || right == Right::kLoad;
}

}  // namespace

absl::string_view RightName(Right right) {
  switch (right) {
    case Right::kList:
      return "list names under";
    case Right::kRead:
      return "read";
    case Right::kWrite:
      return "write";
    case Right::kCreate:
      return "create";
    case Right::kDrop:
      return "drop";
    case Right::kStep:
      return "step";
    case Right::kCall:
      return "call";
    case Right::kSave:
      return "save";
    case Right::kLoad:
      return "load";
    case Right::kInspect:
      return "inspect";
    case Right::kJoin:
      return "join";
  }
  return "use";
}

absl::Status Access::Ask(const Asker& asker, Right right, GlobalId group, size_t count,
                         absl::FunctionRef<std::string(size_t)> name_of) {
  if (asker.caller == self_) return absl::OkStatus();
  if (refuses_hosting_ && LeavesSomething(right))
    return HostsNothing(right, count == 0 ? std::string() : name_of(0));
  const Permission<absl::string_view> asked{asker.principal, asker.caller.incarnation,
                                            asker.session, group, right};
  std::shared_ptr<const AccessPolicy> policy;
  uint64_t times_forgotten = 0;
  {
    MutexLock lock(mutex_);
    if (policy_ == nullptr || permissions_.contains(asked)) return absl::OkStatus();
    policy = policy_;
    times_forgotten = times_forgotten_;
  }
  std::vector<std::string> names;
  names.reserve(count);
  for (size_t i = 0; i < count; ++i) names.push_back(name_of(i));
  const std::optional<size_t> denied = (*policy)({asker, right, names});
  if (denied.has_value())  // a policy may refuse a request that names nothing
    return Denied(asker, right, *denied < names.size() ? names[*denied] : std::string());
  if (group.IsNone()) return absl::OkStatus();
  MutexLock lock(mutex_);
  if (times_forgotten != times_forgotten_) return absl::OkStatus();
  if (permissions_.size() >= kMaxPermissions) permissions_.clear();
  permissions_.insert(
      {std::string(asked.principal), asked.caller, asked.session, asked.group, asked.right});
  return absl::OkStatus();
}

absl::Status Access::HostsNothing(Right right, const std::string& object) const {
  ErrorDetail detail;
  detail.worker = self_.name;
  detail.object = object;
  detail.remedy = "name an owner instead";
  return WithDetail(
      absl::FailedPreconditionError(absl::StrCat(
          self_.name, " is a registrar that hosts no values (--registrar_only), so nobody may ",
          RightName(right), " '", object, "' there; ", detail.remedy)),
      detail);
}

absl::Status Access::Denied(const Asker& asker, Right right, const std::string& object) const {
  ErrorDetail detail;
  detail.worker = self_.name;
  detail.object = object;
  detail.remedy = "ask for the right, or act as another principal";
  const std::string who = asker.caller.name.empty() ? std::string(asker.principal)
                                                    : absl::StrCat(asker.principal, " (called \"",
                                                                   asker.caller.name, "\")");
  return WithDetail(
      absl::PermissionDeniedError(absl::StrCat(who, " may not ", RightName(right), " '", object,
                                               "' on ", self_.name, "; ", detail.remedy)),
      detail);
}

void Access::SetPolicy(AccessPolicy policy) {
  const bool has_policy = policy != nullptr;
  std::shared_ptr<const AccessPolicy> next;
  if (has_policy) next = std::make_shared<const AccessPolicy>(std::move(policy));
  {
    MutexLock lock(mutex_);
    policy_.swap(next);
    permissions_.clear();
    ++times_forgotten_;
    asks_.store(has_policy || refuses_hosting_, std::memory_order_relaxed);
  }
}

void Access::RefuseHosting() {
  refuses_hosting_ = true;
  asks_ = true;
}

void Access::Forget() {
  MutexLock lock(mutex_);
  permissions_.clear();
  ++times_forgotten_;
}

size_t Access::remembered() const {
  MutexLock lock(mutex_);
  return permissions_.size();
}

}  // namespace psd::rpc
