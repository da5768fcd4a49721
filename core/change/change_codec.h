#pragma once

// Writes changes as the messages of proto/psd/v1/journal.proto. Pure. core/change/replay.h reads
// them.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/change/change.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/journal.pb.h"

namespace psd::change {

// The result holds copies of everything that belongs to named contents; gradients of parameters
// that never had a name are left out. Errors: RESOURCE_EXHAUSTED if there is no memory to make a
// strided tensor contiguous, or if the record would have 2 GiB, which no message can have.
absl::StatusOr<v1::JournalRecord> EncodeChange(const Change& change);

// Requires: the tensor is on the host. Errors: RESOURCE_EXHAUSTED as above.
absl::Status EncodeTensor(const Tensor& tensor, v1::RecordedTensor& message);
// Errors: INVALID_ARGUMENT for an unknown dtype, a wrong shape, or bytes that do not fit them;
// RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> DecodeTensor(const v1::RecordedTensor& message);

void EncodeOptions(const std::map<std::string, double>& options, v1::RecordedOptions& message);
// Errors: INVALID_ARGUMENT if the columns differ in length.
absl::StatusOr<std::map<std::string, double>> DecodeOptions(const v1::RecordedOptions& message);

}  // namespace psd::change
