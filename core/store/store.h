#pragma once

// The values of one worker: named ones, which live until dropped, and anonymous ones, which live
// as long as somebody holds them.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/store/parameter.h"
#include "core/store/value.h"
#include "core/store/write_claims.h"

namespace psd::store {

// One hosted value. Shared by the store and by who works with it; a dropped entry lives on until
// they let go. Immutable but for its parameter's versions. Thread-safe.
struct Entry {
  GlobalId id;
  std::shared_ptr<Parameter> parameter;  // a floating dense tensor value that requires grad, or
                                         // any named floating dense tensor
  std::string name;                      // empty: anonymous
  MemoryCharge charge;                   // for `value`; a parameter charges for itself
  Value value;                           // none when `parameter` is set

  // Reads it: a parameter is pinned and becomes a leaf (with its id and version) if it requires
  // grad.
  absl::StatusOr<Value> Read() const;
  // Several of one store, all parameters as they were at one moment (see Parameter::PinAll).
  static absl::StatusOr<std::vector<Value>> ReadAll(
      absl::Span<const std::shared_ptr<const Entry>> entries);
  // As Value::KindName; "parameter f32[2, 3]".
  std::string KindName() const;
  // "'layer1/weight'" or "value 1f3c9a0b44d2e677/12": for messages.
  std::string Label() const;
};
using EntryPtr = std::shared_ptr<const Entry>;

// Values that are read together. Immutable.
struct EntryGroup {
  std::vector<EntryPtr> entries;
  // Theirs, if all are parameters; else none.
  std::vector<Parameter*> parameters;
  std::shared_ptr<const void> keeper;  // of `parameters`: see Parameter::Keep
};
using EntryGroupPtr = std::shared_ptr<const EntryGroup>;  // shared by the store and its readers

struct StoreOptions {
  // Charged for every value hosted here, with its old versions, and for optimizer state.
  std::shared_ptr<MemoryAccount> memory;
  size_t max_values = size_t{16} << 20;
  size_t max_name_bytes = 512;
};

struct CreateOptions {
  bool requires_grad = false;
  // Two creators of one name must agree on this text; empty agrees with everything.
  std::string creation;
};

// Thread-safe.
class Store {
 public:
  // `ids` gives values their ids and outlives the store.
  static std::unique_ptr<Store> Create(StoreOptions options, IdSource& ids);
  virtual ~Store() = default;

  // A name: 1 to max_name_bytes printable ASCII characters without blanks.
  virtual absl::Status CheckName(absl::string_view name) const = 0;

  // The value called `name`, made by `create` if there is none: the first caller creates, the rest
  // wait and get the same; if creation fails all of them get its error and the name stays free.
  // `create` runs on the first caller's thread without a lock held.
  // Errors: FAILED_PRECONDITION when it exists with another `creation`, naming both;
  // INVALID_ARGUMENT for a bad name or requires_grad for what is no floating tensor;
  // RESOURCE_EXHAUSTED.
  virtual Future<EntryPtr> GetOrCreate(const std::string& name, const CreateOptions& options,
                                       absl::AnyInvocable<absl::StatusOr<Value>()> create) = 0;

  // Errors: NOT_FOUND naming the nearest known name.
  virtual absl::StatusOr<EntryPtr> Lookup(const std::string& name) const = 0;
  // Ends the name. The value is anonymous from now on: whoever drops it sees to it that it is
  // erased when nobody holds it any more. With `only` the name is ended only if that value has it.
  // Errors: NOT_FOUND; FAILED_PRECONDITION when another value has the name.
  virtual absl::StatusOr<EntryPtr> Drop(const std::string& name, GlobalId only = {}) = 0;

  // Hosts an anonymous value under a given id (from any worker's IdSource) or a new one.
  // Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED, INVALID_ARGUMENT (requires_grad for what is no
  // floating tensor, a failed variable, id none).
  virtual absl::StatusOr<EntryPtr> Put(GlobalId id, Value value, bool requires_grad) = 0;
  absl::StatusOr<EntryPtr> Put(Value value, bool requires_grad) {
    return Put(NewId(), std::move(value), requires_grad);
  }
  // Errors: NOT_FOUND naming the id. Finds named values too.
  virtual absl::StatusOr<EntryPtr> Get(GlobalId id) const = 0;
  // All of `ids`, or the error for the first that is not here.
  virtual absl::StatusOr<std::vector<EntryPtr>> GetAll(absl::Span<const GlobalId> ids) const = 0;
  // The same for ids that are likely to be asked for again, all in this order: the store remembers
  // the last ones, so that they need not be looked up one by one.
  virtual absl::StatusOr<EntryGroupPtr> GetGroup(absl::Span<const GlobalId> ids) = 0;
  // What the store lets go of when it erases a value. Its destruction may run anything that is in
  // the value: destroy it where no lock is held.
  struct Erased {
    EntryPtr entry;       // null: there was none
    EntryGroupPtr group;  // that held the entry, or null
    explicit operator bool() const { return entry != nullptr; }
  };
  // Frees an anonymous value (its id answers NOT_FOUND from now on; holders of the entry keep it).
  // Locks nothing but the store's own.
  virtual Erased Erase(GlobalId id) = 0;

  virtual GlobalId NewId() = 0;

  // Publishes a new version of a parameter, or writes every row of a table, in turn with the steps
  // that write it; `done` comes with the version's number when that is done, on this thread or on
  // that of the last step before it.
  // Errors: INVALID_ARGUMENT (neither of them, another shape or dtype), RESOURCE_EXHAUSTED.
  virtual void Assign(const EntryPtr& entry, Tensor elements,
                      absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done) = 0;

  // Named entries whose name starts with `prefix`, sorted by name, after `after`, at most `limit`.
  virtual std::vector<EntryPtr> List(absl::string_view prefix, absl::string_view after = {},
                                     size_t limit = SIZE_MAX) const = 0;

  virtual WriteClaims& write_claims() = 0;
  virtual MemoryAccount& memory() = 0;

  struct Stats {
    size_t named = 0;
    size_t anonymous = 0;
    size_t used_bytes = 0;
    size_t limit_bytes = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::store
