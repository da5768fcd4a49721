#pragma once

// The values that one worker hosts: named values, which live until they are dropped, and anonymous
// values, which live until they are erased because nobody holds a reference.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/store/changing.h"
#include "core/store/parameter.h"
#include "core/store/value.h"
#include "core/store/write_claims.h"

namespace psd::store {

// One hosted value. Shared by the store and its users; a dropped entry lives until the last of them
// releases it. Immutable, except for the versions of its parameter. Thread-safe.
struct Entry {
  GlobalId id;
  std::shared_ptr<Parameter> parameter;  // a floating dense tensor value that requires grad, or
                                         // any named floating dense tensor
  std::string name;                      // empty: anonymous
  MemoryCharge charge;                   // of this and `value`; a parameter has charges of its own
  Value value;                           // empty if `parameter` is set

  // Returns the value. A parameter is pinned; it becomes a leaf with its id and version if it
  // requires grad.
  absl::StatusOr<Value> Read() const;
  // Reads several entries of one store, all parameters as they were at one moment (see
  // Parameter::PinAll).
  static absl::StatusOr<std::vector<Value>> ReadAll(
      absl::Span<const std::shared_ptr<const Entry>> entries);
  // The same as Value::KindName, but "parameter f32[2, 3]" for a parameter, and
  // "parameter f32[2, 3] on cuda:0" for one that is not on the CPU.
  std::string KindName() const;
  // Returns the entry's name or id for messages: "'layer1/weight'" or "value 1f3c9a0b44d2e677/12".
  std::string Label() const;
};
using EntryPtr = std::shared_ptr<const Entry>;

// Entries that are read together. Immutable.
struct EntryGroup {
  std::vector<EntryPtr> entries;
  // The parameters of the entries if all of them are parameters, else empty.
  std::vector<Parameter*> parameters;
  std::shared_ptr<const void> keeper;  // keeps `parameters` alive, see Parameter::Keep
  // Tells the groups of one store apart that it remembers; 0 for a group that it does not.
  uint64_t number = 0;
};
using EntryGroupPtr = std::shared_ptr<const EntryGroup>;  // shared by the store and its readers

// Charged for an entry beside its value and its name: for itself, its places in the tables, its
// creation, and the description of a parameter's versions.
inline constexpr size_t kEntryBytes = 512;

// A device on which a store may host parameters.
struct HostedDevice {
  std::shared_ptr<Device> device;
  // The account whose blocks are on the device. It is charged for the parameters there, their old
  // versions and optimizer state.
  std::shared_ptr<MemoryAccount> memory;
};

struct StoreOptions {
  // The account that is charged for all values on the host, their old versions and optimizer state.
  std::shared_ptr<MemoryAccount> memory;
  std::vector<HostedDevice> devices;  // those beside the CPU; no two have the same name
  size_t max_values = size_t{16} << 20;
  size_t max_name_bytes = 512;
};

struct CreateOptions {
  GlobalId id;  // of the new value; none: the store draws one
  bool requires_grad = false;
  // A text that describes how the value is made. Callers that create the same name must give the
  // same text; an empty one matches every text.
  std::string creation;
  // The name of the device that shall have the value. Empty means "cpu". Only parameters can be on
  // another device.
  std::string device;
};

// Thread-safe.
class Store {
 public:
  // `ids` gives values their ids. Requires: it outlives the store.
  static std::unique_ptr<Store> Create(StoreOptions options, IdSource& ids);
  virtual ~Store() = default;

  // Checks that a name has 1 to max_name_bytes printable ASCII characters without blanks.
  // Errors: INVALID_ARGUMENT.
  virtual absl::Status CheckName(absl::string_view name) const = 0;

  // Returns the value called `name`. If there is none, `create` makes it on the first caller's
  // thread, without a lock held; callers that come meanwhile wait and get the same value. If
  // creation fails, all of them get its error, and the name stays free. `before_visible`, unless
  // null, is called when nothing can fail any more and nobody can find the new value yet, without a
  // lock held.
  // Errors: FAILED_PRECONDITION if the value exists with another `creation`, naming both;
  // INVALID_ARGUMENT for a bad name, for a device that does not exist (naming those that do), or
  // for requires_grad or a device if the value is no floating tensor; RESOURCE_EXHAUSTED; those of
  // the device.
  virtual Future<EntryPtr> GetOrCreate(
      Changing, const std::string& name, const CreateOptions& options,
      absl::AnyInvocable<absl::StatusOr<Value>()> create,
      absl::AnyInvocable<void(const EntryPtr&)> before_visible = nullptr) = 0;

  // Errors: NOT_FOUND.
  virtual absl::StatusOr<EntryPtr> Lookup(const std::string& name) const = 0;
  // Returns the name here that a misspelt `name` probably means; empty if none is near enough.
  virtual std::string NearestTo(const std::string& name) const = 0;
  // Removes the name. The value becomes anonymous, and the caller must see to it that it is erased
  // once nobody holds a reference. If `only` is given, the name is removed only if the value with
  // that id has it. Errors: NOT_FOUND; FAILED_PRECONDITION if another value has the name.
  virtual absl::StatusOr<EntryPtr> Drop(Changing, const std::string& name, GlobalId only = {}) = 0;

  // Hosts an anonymous value under `id`, which may be from any worker's IdSource, or under a new
  // id. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED, INVALID_ARGUMENT (requires_grad for a value
  // that is no floating tensor, a failed variable, no id).
  virtual absl::StatusOr<EntryPtr> Put(GlobalId id, Value value, bool requires_grad) = 0;
  absl::StatusOr<EntryPtr> Put(Value value, bool requires_grad) {
    return Put(NewId(), std::move(value), requires_grad);
  }
  // Returns the value with this id, named or anonymous. Errors: NOT_FOUND naming the id.
  virtual absl::StatusOr<EntryPtr> Get(GlobalId id) const = 0;
  // Returns the values of all `ids`, or the error for the first that is not here.
  virtual absl::StatusOr<std::vector<EntryPtr>> GetAll(absl::Span<const GlobalId> ids) const = 0;
  // The same for ids that are likely to be asked for again in the same order. The store remembers
  // the latest few such groups, so that their ids need not be looked up one by one.
  virtual absl::StatusOr<EntryGroupPtr> GetGroup(absl::Span<const GlobalId> ids) = 0;
  // The objects that the store releases when it erases a value. Destroying them may run code of the
  // value, so they must be destroyed where no lock is held.
  struct Erased {
    EntryPtr entry;                     // null if there was no such value
    std::vector<EntryGroupPtr> groups;  // the remembered groups that may have held the entry
    explicit operator bool() const { return entry != nullptr; }
  };
  // Removes an anonymous value. Its id is NOT_FOUND from now on; holders of the entry keep it.
  // Takes no lock except the store's own.
  virtual Erased Erase(GlobalId id) = 0;

  virtual GlobalId NewId() = 0;

  // Returns at most `limit` named entries, sorted by name: those whose names start with `prefix`
  // and sort after `after`.
  virtual std::vector<EntryPtr> List(absl::string_view prefix, absl::string_view after = {},
                                     size_t limit = SIZE_MAX) const = 0;

  virtual WriteClaims& write_claims() = 0;
  virtual MemoryAccount& memory() = 0;
  // Returns the account for values on the device called `device`; empty means "cpu".
  // Errors: INVALID_ARGUMENT naming the devices that exist.
  virtual absl::StatusOr<std::shared_ptr<MemoryAccount>> MemoryOn(
      absl::string_view device) const = 0;

  struct Stats {
    size_t named = 0;
    size_t anonymous = 0;
    size_t used_bytes = 0;
    size_t limit_bytes = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::store
