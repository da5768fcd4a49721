#include "core/store/store.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/device.h"
#include "core/base/nearest_name.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/store/foreign_memory.h"
#include "core/store/on_device.h"

namespace psd::store {
namespace {

// The smallest group that is remembered. Fewer ids are found one by one just as fast, and must not
// displace a larger group.
constexpr size_t kRememberedIds = 16;
// The number of groups that are remembered. So many callers may fetch different lists of values in
// turn.
constexpr size_t kRememberedGroups = 4;

// Returns the tensor of a value that becomes a parameter, or null for values that stay as they are.
const Tensor* ParameterTensor(const Value& value, bool named, bool requires_grad) {
  const Variable* variable = value.As<Variable>();
  if (variable == nullptr || !variable->ok() || !IsFloating(variable->dtype())) return nullptr;
  return named || requires_grad ? &variable->tensor() : nullptr;
}

// Returns whether a device's name stands for the host.
bool IsHost(absl::string_view device) {
  return device.empty() || device == kCpuName;
}

// Returns the device whose budget has the most bytes left, among those that are not lost; null if
// there is none.
std::shared_ptr<Device> MostRoom(absl::Span<const std::shared_ptr<Device>> devices) {
  std::shared_ptr<Device> chosen;
  size_t most = 0;
  for (const std::shared_ptr<Device>& device : devices) {
    const size_t budget = device->budget_bytes();
    const size_t room = budget - std::min(budget, device->used_bytes());
    if (!device->health().ok() || (chosen != nullptr && room <= most)) continue;
    chosen = device;
    most = room;
  }
  return chosen;
}

absl::Status NoValue(GlobalId id) {
  return absl::NotFoundError(absl::StrCat("no value has the id ", id.ToString(),
                                          ": it was released or dropped, or never was here"));
}

absl::Status UnknownName(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no value is called '", name, "'"));
}

// Charges an entry to `memory`. Memory that the budget already counts is not charged again; its
// charge moves to `memory`. A parameter charges its own memory.
absl::StatusOr<MemoryCharge> ChargeFor(const Entry& entry, MemoryAccount& memory) {
  std::vector<const void*> blocks;
  size_t counted_bytes = 0, small_bytes = 0;
  PSD_RETURN_IF_ERROR(entry.value.ForEachTensor([&](const Tensor& tensor) {
    if (tensor.NumBytes() >= kMovableBytes && memory.Counts(tensor.storage().get())) {
      blocks.push_back(tensor.storage().get());
      counted_bytes += tensor.NumBytes();
    } else if (const size_t bytes = tensor.SmallChargeBytes();
               bytes != 0 && memory.small_charges() != 0) {
      small_bytes += bytes;
      counted_bytes += tensor.NumBytes();
    }
    return absl::OkStatus();
  }));
  PSD_ASSIGN_OR_RETURN(MemoryCharge rest, memory.Charge(kEntryBytes + entry.name.size() +
                                                        entry.value.NumBytes() - counted_bytes));
  PSD_ASSIGN_OR_RETURN(const MemoryCharge reserved, memory.Charge(small_bytes));
  PSD_RETURN_IF_ERROR(memory.TakeOver(blocks));
  if (memory.small_charges() == 0) return rest;
  PSD_RETURN_IF_ERROR(entry.value.ForEachTensor([&](const Tensor& tensor) {
    if (tensor.SmallChargeBytes() != 0) tensor.MoveSmallCharge(memory.small_charges());
    return absl::OkStatus();
  }));
  return rest;
}

EntryGroupPtr NewGroup(std::vector<EntryPtr> entries, uint64_t number) {
  auto group = std::make_shared<EntryGroup>();
  group->entries = std::move(entries);
  group->parameters.reserve(group->entries.size());
  for (const EntryPtr& entry : group->entries) {
    if (entry->parameter != nullptr) group->parameters.push_back(entry->parameter.get());
    group->on_device |= entry->on_device;
  }
  if (group->parameters.size() < group->entries.size()) group->parameters.clear();
  group->keeper = Parameter::Keep(group->parameters);
  group->number = number;
  return group;
}

absl::Status CheckCreation(const std::string& name, const std::string& known,
                           const std::string& asked) {
  if (known.empty() || asked.empty() || known == asked) return absl::OkStatus();
  return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                        "'", name, "' exists and was created by ", known, ", not by ", asked)),
                    "create it the same way, look it up, or drop it first");
}

}  // namespace

std::unique_ptr<Store> Store::Create(StoreOptions options, IdSource& ids) {
  return std::unique_ptr<Store>(new Store(std::move(options), ids));
}

absl::Status Store::CheckName(absl::string_view name) const {
  if (name.empty() || name.size() > options_.max_name_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a name of ", name.size(), " characters; names have 1 to ", options_.max_name_bytes));
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (absl::ascii_isgraph(static_cast<unsigned char>(name[i]))) continue;
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "the name '", absl::CHexEscape(name), "' has character number ", i + 1,
                          " that is no printable ASCII, or a blank")),
                      "use letters, digits and / _ - .");
  }
  return absl::OkStatus();
}

absl::Status Store::CheckRoom() const {
  if (values_.size() + creations_.size() < options_.max_values) return absl::OkStatus();
  return WithRemedy(absl::ResourceExhaustedError(
                        absl::StrCat("no room for 1 value more: the store holds ", values_.size(),
                                     " of at most ", options_.max_values)),
                    "drop values or raise max_values");
}

absl::StatusOr<std::shared_ptr<Device>> Store::FindDevice(absl::string_view name) const {
  if (IsHost(name)) return nullptr;
  if (name == kAutoDevice) return MostRoom(options_.devices);
  std::string known = kCpuName;
  for (const std::shared_ptr<Device>& device : options_.devices) {
    if (device->name() == name) return device;
    absl::StrAppend(&known, ", ", device->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no device ", Quoted(name), " here; the devices are ", known));
}

std::shared_ptr<Allocator> Store::MemoryOn(const std::shared_ptr<Device>& device) const {
  if (device == nullptr) return options_.memory;
  return std::shared_ptr<Allocator>(device, &device->memory());
}

std::shared_ptr<Device> Store::OwnDeviceOf(const Tensor& tensor) const {
  for (const std::shared_ptr<Device>& device : options_.devices)
    if (device.get() == tensor.device()) return device;
  return nullptr;
}

absl::StatusOr<std::shared_ptr<Parameter>> Store::NewParameter(const Entry& entry,
                                                               const Tensor& tensor,
                                                               const CreateOptions& options) const {
  const std::shared_ptr<Device> there = OwnDeviceOf(tensor);
  const bool adoptable = options.fresh && there != nullptr && IsWholeBlock(tensor);
  if (adoptable && (options.device == kAutoDevice || options.device == there->name())) {
    return Parameter::Adopt(entry.id, tensor, options.requires_grad, MemoryOn(there), versions_);
  }
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Device> place, FindDevice(options.device));
  return Parameter::Create(entry.id, tensor, options.requires_grad, MemoryOn(place), versions_);
}

absl::StatusOr<std::shared_ptr<Entry>> Store::NewEntry(std::string name, Value value,
                                                       const CreateOptions& options) {
  auto entry = std::make_shared<Entry>();
  entry->id = options.id;
  entry->name = std::move(name);
  const Variable* variable = value.As<Variable>();
  if (variable != nullptr && !variable->ok())
    return Annotate(variable->status(), absl::StrCat(entry->Label(), " cannot be hosted"));
  const Tensor* tensor = ParameterTensor(value, !entry->name.empty(), options.requires_grad);
  if (tensor == nullptr) {
    if (options.requires_grad) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry->Label(), " cannot require grad: it is a ", value.KindName(),
                       ", and only floating tensors can"));
    }
    if (!IsHost(options.device) && options.device != kAutoDevice) {
      return WithRemedy(absl::InvalidArgumentError(
                            absl::StrCat(entry->Label(), " is a ", value.KindName(),
                                         ", and only floating tensors can be created on a device")),
                        "leave out the device");
    }
    absl::StatusOr<Value> own = CopyForeignMemory(std::move(value), *options_.memory);
    if (!own.ok()) return Annotate(own.status(), entry->Label());
    entry->value = *std::move(own);
    entry->on_device = IsOnDevice(entry->value);
    absl::StatusOr<MemoryCharge> charge = ChargeFor(*entry, *options_.memory);
    if (!charge.ok()) return Annotate(charge.status(), entry->Label());
    entry->charge = *std::move(charge);
    return entry;
  }
  absl::StatusOr<MemoryCharge> charge = ChargeFor(*entry, *options_.memory);
  if (!charge.ok()) return Annotate(charge.status(), entry->Label());
  entry->charge = *std::move(charge);
  absl::StatusOr<std::shared_ptr<Parameter>> parameter = NewParameter(*entry, *tensor, options);
  if (!parameter.ok()) return Annotate(parameter.status(), entry->Label());
  entry->parameter = *std::move(parameter);
  entry->on_device = entry->parameter->device() != nullptr;
  return entry;
}

Future<EntryPtr> Store::GetOrCreate(Changing, const std::string& name, const CreateOptions& options,
                                    absl::AnyInvocable<absl::StatusOr<Value>()> create,
                                    absl::AnyInvocable<void(const EntryPtr&)> before_visible) {
  absl::Status valid = CheckName(name);
  if (!valid.ok()) return Future<EntryPtr>::Ready(valid);
  const absl::Status exists = FindDevice(options.device).status();
  if (!exists.ok()) return Future<EntryPtr>::Ready(Annotate(exists, name));
  Promise<EntryPtr> promise;
  absl::StatusOr<EntryPtr> known = EntryPtr();  // null: this thread makes the value
  {
    MutexLock lock(mutex_);
    if (auto found = names_.find(name); found != names_.end()) {
      known = found->second.entry;
      absl::Status agrees = CheckCreation(name, found->second.creation, options.creation);
      if (!agrees.ok()) known = std::move(agrees);
    } else if (auto begun = creations_.find(name); begun != creations_.end()) {
      absl::Status agrees = CheckCreation(name, begun->second.fingerprint, options.creation);
      if (agrees.ok()) return begun->second.promise.future();
      known = std::move(agrees);
    } else if (absl::Status room = CheckRoom(); !room.ok()) {
      known = std::move(room);
    } else {
      creations_.emplace(name, Creation{options.creation, promise});
    }
  }
  if (!known.ok() || *known != nullptr) return Future<EntryPtr>::Ready(std::move(known));
  const auto make = [&]() -> absl::StatusOr<EntryPtr> {
    PSD_ASSIGN_OR_RETURN(Value value, create());
    CreateOptions own = options;
    if (own.id.IsNone()) own.id = NewId();
    PSD_ASSIGN_OR_RETURN(EntryPtr entry, NewEntry(name, std::move(value), own));
    if (before_visible != nullptr) before_visible(entry);
    return entry;
  };
  promise.Set(FinishCreation(name, options.creation, make()));
  return promise.future();
}

absl::StatusOr<EntryPtr> Store::FinishCreation(const std::string& name, const std::string& creation,
                                               absl::StatusOr<EntryPtr> result) {
  MutexLock lock(mutex_);
  creations_.erase(name);
  if (!result.ok()) return result;
  values_.insert(*result);
  names_.emplace((*result)->name, Named{*result, creation});
  return result;
}

std::vector<std::string> Store::NamesAround(const std::string& name) const {
  constexpr int kToEachSide = 500;
  auto from = names_.lower_bound(name);
  for (int i = 0; i < kToEachSide && from != names_.begin(); ++i) --from;
  std::vector<std::string> names;
  for (; from != names_.end() && names.size() < 2 * kToEachSide; ++from) {
    names.emplace_back(from->first);
  }
  return names;
}

std::string Store::NearestTo(const std::string& name) const {
  std::vector<std::string> candidates;
  {
    MutexLock lock(mutex_);
    candidates = NamesAround(name);
  }
  return NearestName(name, candidates);
}

absl::StatusOr<EntryPtr> Store::Lookup(const std::string& name) const {
  MutexLock lock(mutex_);
  auto found = names_.find(name);
  if (found == names_.end()) return UnknownName(name);
  return found->second.entry;
}

absl::StatusOr<EntryPtr> Store::Drop(Changing, const std::string& name, GlobalId only) {
  MutexLock lock(mutex_);
  auto found = names_.find(name);
  if (found == names_.end()) return UnknownName(name);
  if (!only.IsNone() && found->second.entry->id != only) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", name, "' is the name of another value than ", only.ToString(), " now"));
  }
  EntryPtr entry = found->second.entry;
  names_.erase(found);
  return entry;
}

absl::StatusOr<EntryPtr> Store::Put(GlobalId id, Value value, bool requires_grad) {
  if (id.IsNone()) return absl::InvalidArgumentError("a value cannot be hosted under id none");
  {
    MutexLock lock(mutex_);
    PSD_RETURN_IF_ERROR(CheckRoom());
  }
  CreateOptions options;
  options.id = id;
  options.requires_grad = requires_grad;
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, NewEntry("", std::move(value), options));
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(CheckRoom());
  if (!values_.insert(entry).second)
    return absl::AlreadyExistsError(absl::StrCat("value ", id.ToString(), " is hosted already"));
  return entry;
}

absl::StatusOr<EntryPtr> Store::Get(GlobalId id) const {
  MutexLock lock(mutex_);
  auto found = values_.find(id);
  if (found == values_.end()) return NoValue(id);
  return *found;
}

absl::StatusOr<std::vector<EntryPtr>> Store::GetAll(absl::Span<const GlobalId> ids) const {
  MutexLock lock(mutex_);
  return FindAll(ids);
}

absl::StatusOr<EntryGroupPtr> Store::GetGroup(absl::Span<const GlobalId> ids) {
  Remembered displaced;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  for (auto each = remembered_.begin(); each != remembered_.end(); ++each) {
    if (each->ids != ids) continue;
    std::rotate(remembered_.begin(), each, each + 1);
    return remembered_.front().group;
  }
  PSD_ASSIGN_OR_RETURN(std::vector<EntryPtr> entries, FindAll(ids));
  const bool is_remembered = ids.size() >= kRememberedIds;
  EntryGroupPtr group = NewGroup(std::move(entries), is_remembered ? ++groups_remembered_ : 0);
  if (!is_remembered) return group;
  const auto [least, most] = std::minmax_element(ids.begin(), ids.end());
  if (remembered_.size() == kRememberedGroups) {
    displaced = std::move(remembered_.back());
    remembered_.pop_back();
  }
  remembered_.insert(remembered_.begin(), {group, {ids.begin(), ids.end()}, *least, *most});
  return group;
}

absl::StatusOr<std::vector<EntryPtr>> Store::FindAll(absl::Span<const GlobalId> ids) const {
  std::vector<EntryPtr> entries;
  entries.reserve(ids.size());
  for (const GlobalId& id : ids) {
    auto found = values_.find(id);
    if (found == values_.end()) return NoValue(id);
    entries.push_back(*found);
  }
  return entries;
}

Store::Erased Store::Erase(GlobalId id) {
  Erased erased;
  MutexLock lock(mutex_);
  auto found = values_.find(id);
  if (found == values_.end()) return erased;
  auto root = names_.find((*found)->name);
  if (root != names_.end() && root->second.entry == *found) return erased;
  erased.entry = *found;
  for (auto each = remembered_.begin(); each != remembered_.end();) {
    if (id < each->least || each->most < id) {
      ++each;
      continue;
    }
    erased.groups.push_back(std::move(each->group));
    each = remembered_.erase(each);
  }
  values_.erase(found);
  return erased;
}

std::vector<EntryPtr> Store::List(absl::string_view prefix, absl::string_view after,
                                  size_t limit) const {
  std::vector<EntryPtr> entries;
  MutexLock lock(mutex_);
  auto next = after < prefix ? names_.lower_bound(prefix) : names_.upper_bound(after);
  for (; next != names_.end() && entries.size() < limit; ++next) {
    if (!absl::StartsWith(next->first, prefix)) break;
    entries.push_back(next->second.entry);
  }
  return entries;
}

Store::Stats Store::stats() const {
  Stats stats;
  stats.used_bytes = options_.memory->used_bytes();
  stats.limit_bytes = options_.memory->limit_bytes();
  MutexLock lock(mutex_);
  stats.named = names_.size();
  stats.anonymous = values_.size() - names_.size();
  return stats;
}

}  // namespace psd::store
