#pragma once

// A journal in memory, and the contents of a store as text, for comparing two owners.

#include <array>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/change/change.h"
#include "core/change/change_codec.h"
#include "core/change/journal.h"
#include "core/change/journal_format.h"
#include "core/change/replay.h"
#include "core/checkpoint/xxh128.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/store/rows.h"
#include "core/store/store.h"

namespace psd::change {

// Keeps the bytes of every change.
class MemoryJournal : public Journal {
 public:
  void Append(const Change& change) override {
    const auto record = EncodeChange(change);
    PSD_CHECK(record.ok(), "a change that cannot be written");
    const std::string payload = record->SerializeAsString();
    MutexLock lock(mutex_);
    AppendRecord(payload, &bytes_);
    ++counts_[change.index()];
  }
  std::string bytes() const {
    MutexLock lock(mutex_);
    return bytes_;
  }
  // Returns the number of changes of type `Kind` in the journal.
  template <typename Kind>
  size_t count() const {
    MutexLock lock(mutex_);
    return counts_[Change(static_cast<const Kind*>(nullptr)).index()];
  }

 private:
  mutable Mutex mutex_;
  std::string bytes_ PSD_GUARDED_BY(mutex_) = JournalStart();
  std::array<size_t, std::variant_size_v<Change>> counts_ PSD_GUARDED_BY(mutex_) = {};
};

// Applies all records. Errors: those of JournalReader and Replay.
inline absl::Status ReplayAll(absl::string_view journal, const Replay::Uses& uses) {
  Replay replay(uses);
  PSD_ASSIGN_OR_RETURN(JournalReader reader, JournalReader::Open(journal));
  for (size_t number = 1;; ++number) {
    PSD_ASSIGN_OR_RETURN(const auto payload, reader.Next());
    if (!payload.has_value()) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(Annotate(replay.Apply(*payload), absl::StrCat("record ", number)));
  }
}

inline std::string Digest(const void* data, size_t bytes) {
  checkpoint::Xxh128 digest;
  digest.Add({static_cast<const char*>(data), bytes});
  return digest.Digest();
}

// Describes the elements of a parameter, of rows or of a tensor: the version and a checksum.
inline std::string TextOfElements(const store::Entry& entry) {
  if (const auto rows = store::AsRows(entry.value); rows != nullptr) {
    std::string elements(rows->bytes(), '\0');
    const absl::Status read =
        rows->ReadElements(0, reinterpret_cast<std::byte*>(elements.data()), elements.size());
    PSD_CHECK(read.ok(), read.ToString());
    return absl::StrCat(entry.KindName(), " v", rows->version(), " ",
                        Digest(elements.data(), elements.size()));
  }
  uint64_t version = 0;
  Tensor elements;
  if (entry.parameter != nullptr) {
    const store::PinnedVersion pinned = *entry.parameter->Pin();
    version = pinned.version;
    elements = *pinned.tensor.ToHost();
  } else {
    const auto* variable = entry.value.As<Variable>();
    if (variable == nullptr) return entry.KindName();
    elements = variable->tensor();
  }
  return absl::StrCat(entry.KindName(), " v", version, " ",
                      Digest(elements.raw_data(), elements.NumBytes()));
}

inline std::string Bits(double value) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(&value), sizeof(value)});
}

inline std::string TextOfOptimizer(const optim::OwnerOptimizer& optimizer) {
  const optim::OwnerOptimizer::Stats stats = optimizer.stats();
  const optim::OptimizerLife life = optimizer.life();
  std::string text = absl::StrCat(
      "  ", optimizer.settings().ToString(), " life ", life.id.ToString(), " of ",
      life.owners.size(), " stage ", static_cast<int>(life.stage), "\n  steps ", stats.steps,
      " skipped ", stats.skipped, " staleness ", stats.max_staleness, " ",
      Bits(stats.mean_staleness), " scale ", Bits(stats.loss_scale), " ", stats.good_steps, "\n");
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    const optim::GroupOptions options = *optimizer.options(group);
    absl::StrAppend(&text, "  group v", options.version, " ", options.spec.ToString(), "\n");
  }
  for (const optim::ParameterStaleness& each : optimizer.staleness(1000)) {
    absl::StrAppend(&text, "  behind ", each.parameter, " ", each.last, " ", each.most, " ",
                    Bits(each.mean), " ", each.steps, "\n");
  }
  const optim::ParameterTable& table = optimizer.table();
  for (size_t i = 0; i < table.size(); ++i) {
    const optim::SteppedParameter& parameter = table[i];
    absl::StrAppend(&text, "  over ", parameter.id().ToString(), " in ", parameter.group(), " ",
                    TextOfElements(*parameter.entry()), " steps ", parameter.steps(), "\n");
    for (const optim::StateArray& array : parameter.state()) {
      std::string here(array.bytes, '\0');
      const absl::Status read = CopyBytes(nullptr, reinterpret_cast<std::byte*>(here.data()),
                                          array.device, array.data, array.bytes);
      PSD_CHECK(read.ok(), read.ToString());
      absl::StrAppend(&text, "    ", array.name, " ", Digest(here.data(), here.size()), "\n");
    }
  }
  return text;
}

// Describes every named value, with all its state. Requires: nothing changes meanwhile.
inline std::string TextOf(const store::Store& store) {
  std::string text;
  for (const store::EntryPtr& entry : store.List("")) {
    absl::StrAppend(&text, entry->name, " ", entry->id.ToString(), " ", TextOfElements(*entry),
                    entry->parameter != nullptr && entry->parameter->requires_grad() ? " grad" : "",
                    "\n");
    if (const auto optimizer = optim::OptimizerOf(*entry); optimizer != nullptr)
      text += TextOfOptimizer(*optimizer);
  }
  return text;
}

}  // namespace psd::change
