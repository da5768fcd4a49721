#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/store/failure.h"
#include "core/store/rows.h"
#include "core/store/store.h"

namespace psd::store {
namespace {

Value AsValue(const Parameter& parameter, PinnedVersion pinned) {
  if (!parameter.requires_grad()) return Value(std::move(pinned.tensor));
  return Value(Variable::Leaf(std::move(pinned.tensor), parameter.id(), pinned.version));
}

}  // namespace

absl::StatusOr<Value> Entry::Read() const {
  if (parameter == nullptr) {
    PSD_RETURN_IF_ERROR(Annotate(FailureOf(value), Label()));
    return value;
  }
  absl::StatusOr<PinnedVersion> pinned = parameter->Pin();
  if (!pinned.ok()) return Annotate(pinned.status(), Label());
  return AsValue(*parameter, *std::move(pinned));
}

absl::StatusOr<std::vector<Value>> Entry::ReadAll(absl::Span<const EntryPtr> entries) {
  std::vector<Parameter*> parameters;
  for (const EntryPtr& entry : entries) {
    if (entry->parameter != nullptr) {
      parameters.push_back(entry->parameter.get());
    } else {
      PSD_RETURN_IF_ERROR(Annotate(FailureOf(entry->value), entry->Label()));
    }
  }
  PSD_ASSIGN_OR_RETURN(std::vector<PinnedVersion> pinned, Parameter::PinAll(parameters));
  std::vector<Value> values;
  values.reserve(entries.size());
  size_t next = 0;
  for (const EntryPtr& entry : entries) {
    values.push_back(entry->parameter == nullptr
                         ? entry->value
                         : AsValue(*entry->parameter, std::move(pinned[next++])));
  }
  return values;
}

std::string Entry::KindName() const {
  if (parameter == nullptr) return value.KindName();
  const std::string kind =
      absl::StrCat("parameter ", DTypeName(parameter->dtype()), parameter->shape().ToString());
  if (parameter->device() == nullptr) return kind;
  return absl::StrCat(kind, " on ", DeviceName(parameter->device()));
}

Device* Entry::device() const {
  if (parameter != nullptr) return parameter->device();
  const std::shared_ptr<Rows> rows = AsRows(value);
  return rows == nullptr ? nullptr : rows->device();
}

std::string Entry::Label() const {
  return name.empty() ? absl::StrCat("value ", id.ToString()) : absl::StrCat("'", name, "'");
}

}  // namespace psd::store
