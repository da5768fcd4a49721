#pragma once

// The values that one worker hosts. Named values live until they are dropped. Anonymous values live
// until they are erased because nobody holds a reference.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
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
  MemoryCharge charge;                   // for this and `value`; a parameter has charges of its own
  Value value;                           // empty if `parameter` is set
  bool on_device = false;  // whether elements are on a device, so that reading them waits for it

  // Returns the value. A parameter is pinned; it becomes a leaf with its id and version if it
  // requires grad.
  absl::StatusOr<Value> Read() const;
  // Reads several entries of one store, all parameters as they were at one moment (see
  // Parameter::PinAll).
  static absl::StatusOr<std::vector<Value>> ReadAll(
      absl::Span<const std::shared_ptr<const Entry>> entries);
  // As Value::KindName, but "parameter f32[2, 3]" for a parameter, and "parameter f32[2, 3] on
  // cuda:0" for one that is not on the CPU.
  std::string KindName() const;
  // Returns the entry's name or id for messages: "'layer1/weight'" or "value 1f3c9a0b44d2e677/12".
  std::string Label() const;
  // Returns the device of a parameter or of a table of rows; null for the host and for other
  // values.
  Device* device() const;
};
using EntryPtr = std::shared_ptr<const Entry>;

// Entries that are read together. Immutable.
struct EntryGroup {
  std::vector<EntryPtr> entries;
  // The parameters of the entries if all of them are parameters; otherwise empty.
  std::vector<Parameter*> parameters;
  std::shared_ptr<const void> keeper;  // keeps `parameters` alive, see Parameter::Keep
  bool on_device = false;              // whether any of the entries is on a device
  // Identifies a group that the store remembers; 0 for a group that it does not.
  uint64_t number = 0;
};
using EntryGroupPtr = std::shared_ptr<const EntryGroup>;  // shared by the store and its readers

// The charge for an entry besides its value and its name: for the entry, its places in the tables,
// its creation, and the description of a parameter's versions.
inline constexpr size_t kEntryBytes = 512;

struct StoreOptions {
  // The account that is charged for all values on the host, their old versions and optimizer state.
  std::shared_ptr<MemoryAccount> memory;
  // The devices beside the CPU on which the store may host parameters and tables. Each has a budget
  // of its own for them, their old versions and optimizer state. No two have the same name.
  std::vector<std::shared_ptr<Device>> devices;  // shared with their creator
  size_t max_values = size_t{16} << 20;
  size_t max_name_bytes = 512;
};

struct CreateOptions {
  GlobalId id;  // of the new value; no id: the store draws one
  bool requires_grad = false;
  // A text that describes how the value is made. Callers that create the same name must give the
  // same text; an empty one matches every text.
  std::string creation;
  // The name of the device for the value. Empty means "cpu". Only parameters can be on another
  // device. With kAutoDevice, the device for a parameter is chosen when it is made, and other
  // values are on the CPU.
  std::string device;
  // Nobody else has the memory of the value. A parameter keeps it then if it is a whole block on
  // the device that is asked for, with kAutoDevice on any device of the store. Otherwise, and on
  // the CPU, a parameter gets a copy.
  bool fresh = false;
};

// Thread-safe.
class Store {
 public:
  // `ids` gives values their ids. Requires: it outlives the store.
  static std::unique_ptr<Store> Create(StoreOptions options, IdSource& ids);
  ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Checks that a name has 1 to max_name_bytes printable ASCII characters without blanks.
  // Errors: INVALID_ARGUMENT.
  absl::Status CheckName(absl::string_view name) const;

  // Returns the value called `name`. If there is none, `create` makes it on the first caller's
  // thread, without a lock held; callers that come meanwhile wait and get the same value. If
  // creation fails, all of them get its error, and the name stays free. `before_visible`, unless
  // null, is called without a lock held when nothing can fail any more and nobody can find the new
  // value yet. Errors: FAILED_PRECONDITION if the value exists with another `creation`, naming
  // both; INVALID_ARGUMENT for a bad name, for a device that does not exist (naming those that do),
  // or for requires_grad or a device if the value is not a floating tensor; RESOURCE_EXHAUSTED;
  // those of the device.
  Future<EntryPtr> GetOrCreate(Changing, const std::string& name, const CreateOptions& options,
                               absl::AnyInvocable<absl::StatusOr<Value>()> create,
                               absl::AnyInvocable<void(const EntryPtr&)> before_visible = nullptr);

  // Errors: NOT_FOUND.
  absl::StatusOr<EntryPtr> Lookup(const std::string& name) const;
  // Returns the name here that a misspelt `name` probably means; empty if none is near enough.
  std::string NearestTo(const std::string& name) const;
  // Removes the name. The value becomes anonymous, and the caller must make sure that it is erased
  // once nobody holds a reference. If `only` is given, the name is removed only if the value with
  // that id has it. Errors: NOT_FOUND; FAILED_PRECONDITION if another value has the name.
  absl::StatusOr<EntryPtr> Drop(Changing, const std::string& name, GlobalId only = {});

  // Hosts an anonymous value under `id`, which may be from any worker's IdSource, or under a new
  // id. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED, INVALID_ARGUMENT (requires_grad for a value
  // that is not a floating tensor, a failed variable, no id).
  absl::StatusOr<EntryPtr> Put(GlobalId id, Value value, bool requires_grad);
  absl::StatusOr<EntryPtr> Put(Value value, bool requires_grad) {
    return Put(NewId(), std::move(value), requires_grad);
  }
  // Returns the value with this id, named or anonymous. Errors: NOT_FOUND naming the id.
  absl::StatusOr<EntryPtr> Get(GlobalId id) const;
  // Returns the values of all `ids`, or the error for the first one that is not here.
  absl::StatusOr<std::vector<EntryPtr>> GetAll(absl::Span<const GlobalId> ids) const;
  // As GetAll, for ids that are likely to be asked for again in the same order. The store remembers
  // the latest few such groups, so their ids need not be looked up one by one.
  absl::StatusOr<EntryGroupPtr> GetGroup(absl::Span<const GlobalId> ids);
  // The objects that the store releases when it erases a value. Destroying them may run code of the
  // value, so they must be destroyed where no lock is held.
  struct Erased {
    EntryPtr entry;                     // null if there was no such value
    std::vector<EntryGroupPtr> groups;  // the remembered groups that may have held the entry
    explicit operator bool() const { return entry != nullptr; }
  };
  // Removes an anonymous value. From now on Get of its id fails with NOT_FOUND; holders of the
  // entry keep it. Takes no lock except the store's own.
  Erased Erase(GlobalId id);

  GlobalId NewId() { return ids_.Next(); }

  // Returns at most `limit` named entries, sorted by name: those whose names start with `prefix`
  // and sort after `after`.
  std::vector<EntryPtr> List(absl::string_view prefix, absl::string_view after = {},
                             size_t limit = SIZE_MAX) const;

  WriteClaims& write_claims() { return claims_; }
  MemoryAccount& memory() { return *options_.memory; }
  // The devices beside the CPU.
  const std::vector<std::shared_ptr<Device>>& devices() const { return options_.devices; }
  // Returns the device called `name`; null for "cpu" and for an empty name. kAutoDevice means the
  // device whose budget has the most bytes left at this moment, among those that are not lost, or
  // null if there is none. Errors: INVALID_ARGUMENT naming the devices that exist.
  absl::StatusOr<std::shared_ptr<Device>> FindDevice(absl::string_view name) const;
  // Returns the allocator for values on `device`; null means the CPU.
  std::shared_ptr<Allocator> MemoryOn(const std::shared_ptr<Device>& device) const;

  struct Stats {
    size_t named = 0;
    size_t anonymous = 0;
    size_t used_bytes = 0;
    size_t limit_bytes = 0;
  };
  Stats stats() const;

 private:
  Store(StoreOptions options, IdSource& ids) : options_(std::move(options)), ids_(ids) {}

  // Hashes entries by their ids.
  struct EntryHash {
    using is_transparent = void;
    size_t operator()(GlobalId id) const { return absl::Hash<GlobalId>()(id); }
    size_t operator()(const EntryPtr& entry) const { return (*this)(entry->id); }
  };
  struct EntryEqual {
    using is_transparent = void;
    bool operator()(const EntryPtr& a, GlobalId b) const { return a->id == b; }
    bool operator()(const EntryPtr& a, const EntryPtr& b) const { return a->id == b->id; }
  };
  struct Named {
    EntryPtr entry;
    std::string creation;  // a text that describes how it was made
  };
  // A name whose value is being made.
  struct Creation {
    std::string fingerprint;
    Promise<EntryPtr> promise;
  };

  // Returns the device that `tensor` is on if it is one of this store's; otherwise null.
  std::shared_ptr<Device> OwnDeviceOf(const Tensor& tensor) const;
  // `options.id` is that of the new value.
  absl::StatusOr<std::shared_ptr<Entry>> NewEntry(std::string name, Value value,
                                                  const CreateOptions& options);
  // Makes the parameter of the entry, which has the name and the id.
  absl::StatusOr<std::shared_ptr<Parameter>> NewParameter(const Entry& entry, const Tensor& tensor,
                                                          const CreateOptions& options) const;
  absl::Status CheckRoom() const PSD_REQUIRES(mutex_);
  absl::StatusOr<std::vector<EntryPtr>> FindAll(absl::Span<const GlobalId> ids) const
      PSD_REQUIRES(mutex_);
  // Ends the creation of `name`: hosts the value, or frees the name after an error.
  absl::StatusOr<EntryPtr> FinishCreation(const std::string& name, const std::string& creation,
                                          absl::StatusOr<EntryPtr> result) PSD_EXCLUDES(mutex_);
  // Returns a bounded number of names that sort near `name`, to find the one that was meant.
  std::vector<std::string> NamesAround(const std::string& name) const PSD_REQUIRES(mutex_);

  const StoreOptions options_;
  IdSource& ids_;
  WriteClaims claims_;
  // Shared with the parameters.
  const std::shared_ptr<VersionLock> versions_ = std::make_shared<VersionLock>();

  mutable Mutex mutex_;  // leaf
  absl::flat_hash_set<EntryPtr, EntryHash, EntryEqual> values_ PSD_GUARDED_BY(mutex_);
  // A group of GetGroup. It is forgotten when one of its values is erased.
  struct Remembered {
    EntryGroupPtr group;
    std::vector<GlobalId> ids;
    GlobalId least, most;  // the least and the greatest of `ids`
  };
  // At most kRememberedGroups. The group that was asked for last comes first.
  std::vector<Remembered> remembered_ PSD_GUARDED_BY(mutex_);
  uint64_t groups_remembered_ PSD_GUARDED_BY(mutex_) = 0;
  // The keys are the names in the entries.
  std::map<absl::string_view, Named> names_ PSD_GUARDED_BY(mutex_);
  std::map<std::string, Creation> creations_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::store
