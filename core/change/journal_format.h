#pragma once

// The bytes of a journal: records one after the other.
//
//   record   length of the payload, 4 bytes, little-endian
//            XXH3-128 of the length and the payload, as 32 lower-case hexadecimal digits
//            payload
//
// The payload of the first record is a v1::JournalStart, those of the others are v1::JournalRecord.
// A journal may end after any record.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::change {

inline constexpr uint32_t kJournalFormat = 1;
inline constexpr size_t kRecordHeaderBytes = 4 + 32;

// Appends a record to `journal`. Requires: the payload has less than 2 GiB.
void AppendRecord(absl::string_view payload, std::string* journal);

// Returns the first record, for a journal that this machine writes.
std::string JournalStart();

// Reads the records of a journal, which must outlive it. Thread-compatible.
class JournalReader {
 public:
  // Errors: DATA_LOSS for a damaged start; FAILED_PRECONDITION, naming both, for another format, or
  // for another instruction set than this machine's, on which a replay would give other bits.
  static absl::StatusOr<JournalReader> Open(absl::string_view journal);

  // Returns the payload of the next record, or nothing at the end.
  // Errors: DATA_LOSS naming the offset of a record that is cut off or damaged.
  absl::StatusOr<std::optional<absl::string_view>> Next();

 private:
  explicit JournalReader(absl::string_view journal) : journal_(journal) {}

  absl::string_view journal_;
  size_t next_ = 0;  // the offset of the next record
};

}  // namespace psd::change
