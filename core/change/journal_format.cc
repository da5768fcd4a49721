#include "core/change/journal_format.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/xxh128.h"
#include "kernels/instruction_set.h"
#include "proto/psd/v1/journal.pb.h"

namespace psd::change {
namespace {

constexpr size_t kLengthBytes = 4;
static_assert(kRecordHeaderBytes == kLengthBytes + checkpoint::kXxh128Digits);

std::string LengthBytes(size_t length) {
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i)
    bytes.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  return bytes;
}

size_t Length(absl::string_view bytes) {
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return length;
}

std::string Checksum(absl::string_view length, absl::string_view payload) {
  checkpoint::Xxh128 checksum;
  checksum.Add(length);
  checksum.Add(payload);
  return checksum.Digest();
}

}  // namespace

void AppendRecord(absl::string_view payload, std::string* journal) {
  PSD_CHECK(payload.size() >> 31 == 0, "a record of the journal of 2 GiB");
  const std::string length = LengthBytes(payload.size());
  absl::StrAppend(journal, length, Checksum(length, payload), payload);
}

std::string JournalStart() {
  v1::JournalStart start;
  start.set_format(kJournalFormat);
  start.set_instruction_set(kernels::InstructionSet());
  std::string journal;
  AppendRecord(start.SerializeAsString(), &journal);
  return journal;
}

absl::StatusOr<JournalReader> JournalReader::Open(absl::string_view journal) {
  JournalReader reader(journal);
  PSD_ASSIGN_OR_RETURN(const std::optional<absl::string_view> first, reader.Next());
  v1::JournalStart start;
  if (!first.has_value() || !start.ParseFromArray(first->data(), static_cast<int>(first->size())))
    return absl::DataLossError("the journal does not begin with the start of one");
  if (start.format() != kJournalFormat) {
    return absl::FailedPreconditionError(absl::StrCat("the journal has format ", start.format(),
                                                      ", and this program reads format ",
                                                      kJournalFormat));
  }
  if (start.instruction_set() != kernels::InstructionSet()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the journal was written on ", start.instruction_set(), ", and this machine has ",
        kernels::InstructionSet(), ", on which the same changes give other bits"));
  }
  return reader;
}

absl::StatusOr<std::optional<absl::string_view>> JournalReader::Next() {
  const absl::string_view rest = journal_.substr(next_);
  if (rest.empty()) return std::nullopt;
  if (rest.size() < kRecordHeaderBytes || rest.size() - kRecordHeaderBytes < Length(rest)) {
    return absl::DataLossError(absl::StrCat("the record at byte ", next_, " of the journal is cut ",
                                            "off after ", rest.size(), " bytes"));
  }
  const absl::string_view payload = rest.substr(kRecordHeaderBytes, Length(rest));
  if (rest.substr(kLengthBytes, checkpoint::kXxh128Digits) !=
      Checksum(rest.substr(0, kLengthBytes), payload)) {
    return absl::DataLossError(
        absl::StrCat("the record at byte ", next_, " of the journal is damaged"));
  }
  next_ += kRecordHeaderBytes + payload.size();
  return payload;
}

}  // namespace psd::change
