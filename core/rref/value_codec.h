#pragma once

// Encodes values as payloads and decodes them. The header (proto/psd/v1/value.proto) has packed
// columns; a column holds one field of all values, in pre-order. The elements of tensors are in the
// payload's buffers: small tensors share one buffer, large ones have their own.

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/base/device.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/fork_data.h"
#include "core/store/value.h"
#include "core/tensor/flat_tensor.h"

namespace psd::rref {

// Returns the tensors among `values`, in the order in which EncodeValues sends them. Send functions
// of distributed autograd refer to them by number.
std::vector<Variable> CollectVariables(absl::Span<const store::Value> values);

// Fills in the data of an RRef that is to be encoded.
using DescribeFork = absl::FunctionRef<absl::Status(const store::RemoteReference&, ForkData&)>;
// Makes the RRefs of a run that has arrived, in order.
using AdoptForks = absl::FunctionRef<absl::StatusOr<std::vector<store::Value>>(const ForkRun&)>;
// Turns the tensors that have arrived (all of them, in order) into variables.
using WrapTensors = absl::FunctionRef<absl::StatusOr<std::vector<Variable>>(std::vector<Tensor>)>;

// Errors: INVALID_ARGUMENT for a value that cannot be sent (an object, an invalid variable), and
// for values that are nested too deeply or too large; those of `describe`.
absl::StatusOr<rpc::Payload> EncodeValues(absl::Span<const store::Value> values,
                                          DescribeFork describe);

// If the RRefs are encoded correctly, `adopt` gets all of them, even if the rest cannot be decoded.
// Errors: INVALID_ARGUMENT for bytes that EncodeValues never produces, naming what is wrong; those
// of `wrap` and `adopt`.
absl::StatusOr<std::vector<store::Value>> DecodeValues(const rpc::Payload& payload,
                                                       WrapTensors wrap, AdoptForks adopt);

// Encodes tensors as EncodeValues encodes values. An undefined tensor is sent as an empty value.
// Elements on `stays_on` may stay there; see PackTensors. Errors: those of EncodeValues.
absl::StatusOr<rpc::Payload> EncodeTensorValues(absl::Span<const Tensor> tensors,
                                                const Device* stays_on = nullptr);
// As above, for tensors whose elements `owner` keeps alive. The payload shares `owner` only if a
// tensor is too large to be copied.
absl::StatusOr<rpc::Payload> EncodeFlatTensors(absl::Span<const FlatTensor> tensors,
                                               const std::shared_ptr<const void>& owner);
// Decodes values that are tensors or empty; an empty value becomes an undefined tensor.
// Errors: those of DecodeValues; INVALID_ARGUMENT for any other value.
absl::StatusOr<Tensors> DecodeTensorValues(const rpc::Payload& payload);

}  // namespace psd::rref
