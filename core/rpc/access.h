#pragma once

// The second check of a request, after admission: may the caller do this to these objects? A method
// asks as soon as it has found its objects, and before it changes anything. Requests that come
// through the gateway are checked by the same functions.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/rpc/admission.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// The action that a caller wants to take. The comments say which objects each right covers.
enum class Right {
  kList,     // see the names, kinds and sizes of values; the prefix of the names
  kRead,     // values, tables, gradients, optimizers
  kWrite,    // values, the gradients of values, the options of optimizers
  kCreate,   // the name of a value or an optimizer; empty for an optimizer without a name
  kDrop,     // the name of a value or an optimizer
  kStep,     // optimizers; at the creation of an optimizer, its parameters
  kCall,     // the name of a registered function, or kAnyProgram
  kSave,     // values, and optimizers whose state is copied; the worker, for files that it writes
  kLoad,     // values and optimizers; the worker, for room
  kInspect,  // the worker, for its status and a description of all it hosts; the job's workers
  kJoin,     // the job; barriers and all-gathers, by name
};
absl::string_view RightName(Right right);  // "read", "list names under"

// The object of a call that brings its own program. The values that the program reads are checked
// by name.
inline constexpr absl::string_view kAnyProgram = "programs";

// The caller about whom a question is asked. Its members refer to data that must live until the
// question is answered.
struct Asker {
  absl::string_view principal;  // the proven identity of the caller
  const PeerInfo& caller;       // a worker, or the name and the session of a client
  uint64_t session = 0;         // the caller's session on this worker
};

// One question to the policy.
struct AccessQuestion {
  const Asker& asker;
  Right right;
  absl::Span<const std::string> objects;  // names; the id of a value that has no name
};
// Returns the position of the first object that the asker must not use, or nullopt if it may use
// all. Called on any thread, several at a time, and without a lock held.
using AccessPolicy = std::function<std::optional<size_t>(const AccessQuestion&)>;

// Decides for one worker. It allows everything until it has a policy. A worker may do everything to
// its own objects, because the functions and the gateway that call it have been checked for their
// callers. Thread-safe. No lock is held while the policy is asked.
class Access {
 public:
  explicit Access(PeerInfo self) : self_(std::move(self)) {}
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  // Asks whether the caller may use `count` objects, whose names are `name_of(0)`, `name_of(1)`, …
  // The permission is remembered for the principal, the caller's session, the right and `group`, an
  // id that must stand for the same objects each time. If `group` is no id, nothing is remembered.
  // Errors: PERMISSION_DENIED naming the principal, the right and the first object that is denied;
  // FAILED_PRECONDITION (see RefuseHosting).
  absl::Status Authorize(const Asker& asker, Right right, GlobalId group, size_t count,
                         absl::FunctionRef<std::string(size_t)> name_of) {
    if (!asks_.load(std::memory_order_relaxed)) return absl::OkStatus();
    return Ask(asker, right, group, count, name_of);
  }
  // As above, for one object, whose permission is not remembered.
  absl::Status Authorize(const Asker& asker, Right right, absl::string_view object) {
    if (!asks_.load(std::memory_order_relaxed)) return absl::OkStatus();
    return Ask(asker, right, {}, 1, [object](size_t) { return std::string(object); });
  }

  // Replaces the policy; null allows everything. Questions under way may still be answered by the
  // previous policy. All permissions are forgotten.
  void SetPolicy(AccessPolicy policy) PSD_EXCLUDES(mutex_);
  // Makes this worker refuse, whatever the policy says, everything that would leave something on it
  // or run on it: the rights kCreate, kCall and kLoad. For a registrar that hosts no values. The
  // refusal is FAILED_PRECONDITION naming this worker and the object. Must be called before the
  // worker serves.
  void RefuseHosting();
  bool refuses_hosting() const { return refuses_hosting_; }
  // Forgets all permissions. To be called when an object has lost or changed its name.
  void NameDropped() {
    if (asks_.load(std::memory_order_relaxed)) Forget();
  }
  // Returns the number of permissions that are remembered. For tests.
  size_t remembered() const PSD_EXCLUDES(mutex_);

 private:
  // `Text` is a string in a permission that is remembered, and a view in one that is looked up.
  template <typename Text>
  struct Permission {
    Text principal;
    Incarnation caller = 0;
    uint64_t session = 0;
    GlobalId group;
    Right right = Right::kRead;
  };
  struct PermissionHash {
    using is_transparent = void;
    template <typename Text>
    size_t operator()(const Permission<Text>& p) const {
      return absl::HashOf(absl::string_view(p.principal), p.caller, p.session, p.group, p.right);
    }
  };
  struct PermissionEqual {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const Permission<A>& a, const Permission<B>& b) const {
      return a.caller == b.caller && a.session == b.session && a.group == b.group &&
             a.right == b.right && a.principal == b.principal;
    }
  };

  absl::Status Ask(const Asker& asker, Right right, GlobalId group, size_t count,
                   absl::FunctionRef<std::string(size_t)> name_of) PSD_EXCLUDES(mutex_);
  void Forget() PSD_EXCLUDES(mutex_);
  absl::Status HostsNothing(Right right, const std::string& object) const;
  absl::Status Denied(const Asker& asker, Right right, const std::string& object) const;

  const PeerInfo self_;
  std::atomic<bool> asks_{false};  // false if everybody is allowed everything
  std::atomic<bool> refuses_hosting_{false};
  mutable Mutex mutex_;                                                // leaf
  std::shared_ptr<const AccessPolicy> policy_ PSD_GUARDED_BY(mutex_);  // shared with questions
  uint64_t times_forgotten_ PSD_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<Permission<std::string>, PermissionHash, PermissionEqual> permissions_
      PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::rpc
