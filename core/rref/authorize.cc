#include "core/rref/authorize.h"

#include "absl/strings/str_cat.h"
#include "core/base/nearest_name.h"
#include "core/base/status.h"

namespace psd::rref {
namespace {

std::string NameOf(const store::Entry& entry) {
  return entry.name.empty() ? entry.Label() : entry.name;
}

}  // namespace

absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       const store::Entry& entry) {
  return access.Authorize(asker, right, entry.id, 1, [&](size_t) { return NameOf(entry); });
}

absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       absl::Span<const store::EntryPtr> entries) {
  for (const store::EntryPtr& entry : entries)
    PSD_RETURN_IF_ERROR(Authorize(access, asker, right, *entry));
  return absl::OkStatus();
}

absl::Status Authorize(rpc::Access& access, const rpc::Asker& asker, rpc::Right right,
                       const store::EntryGroup& group) {
  if (group.number == 0) return Authorize(access, asker, right, group.entries);
  // No worker has the incarnation 0, so the number of a group is never the id of a value.
  return access.Authorize(asker, right, {0, group.number}, group.entries.size(),
                          [&](size_t i) { return NameOf(*group.entries[i]); });
}

absl::StatusOr<store::EntryPtr> FindNamed(rpc::Access& access, const store::Store& store,
                                          const rpc::Asker& asker, rpc::Right right,
                                          const std::string& name) {
  absl::StatusOr<store::EntryPtr> entry = store.Lookup(name);
  PSD_RETURN_IF_ERROR(entry.ok() ? Authorize(access, asker, right, **entry)
                                 : access.Authorize(asker, right, name));
  if (!entry.ok()) return UnknownName(access, store, asker, name);
  return entry;
}

absl::Status UnknownName(rpc::Access& access, const store::Store& store, const rpc::Asker& asker,
                         const std::string& name) {
  const bool may_list = access.Authorize(asker, rpc::Right::kList, "").ok();
  return absl::NotFoundError(absl::StrCat("no value is called '", name, "'",
                                          may_list ? DidYouMean(store.NearestTo(name)) : ""));
}

}  // namespace psd::rref
