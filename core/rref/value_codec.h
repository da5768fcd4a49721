#pragma once

// Values <-> payloads: packed columns in the header (proto/psd/v1/value.proto), tensor bytes in
// buffers. A column holds one field of all values in pre-order; small tensors share one buffer,
// large ones have their own.

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/fork_data.h"
#include "core/store/value.h"
#include "core/tensor/flat_tensor.h"

namespace psd::rref {

// The tensors among `values`, in the order in which they travel; what send functions refer to.
std::vector<Variable> CollectVariables(absl::Span<const store::Value> values);

// Says all of an RRef that is met.
using DescribeFork = absl::FunctionRef<absl::Status(const store::RemoteReference&, ForkData&)>;
// Makes the RRefs of a run that arrived, in order.
using AdoptForks = absl::FunctionRef<absl::StatusOr<std::vector<store::Value>>(const ForkRun&)>;
// Turns the tensors that arrived (all of them, in order) into variables.
using WrapTensors = absl::FunctionRef<absl::StatusOr<std::vector<Variable>>(std::vector<Tensor>)>;

// Errors: INVALID_ARGUMENT for a value that cannot travel (an object, an invalid variable) or that
// is too deep or too large; those of `describe`.
absl::StatusOr<rpc::Payload> EncodeValues(absl::Span<const store::Value> values,
                                          DescribeFork describe);

// Errors: INVALID_ARGUMENT for bytes that EncodeValues never makes, naming what is wrong; those of
// `wrap` and `adopt`.
absl::StatusOr<std::vector<store::Value>> DecodeValues(const rpc::Payload& payload,
                                                       WrapTensors wrap, AdoptForks adopt);

// A list of tensors, on the wire as EncodeValues would put it; undefined ones travel as nothing.
// Errors: INVALID_ARGUMENT, as above.
absl::StatusOr<rpc::Payload> EncodeTensorValues(absl::Span<const Tensor> tensors);
// The same for elements that `owner` keeps. Shares it only where one is too large to copy.
absl::StatusOr<rpc::Payload> EncodeFlatTensors(absl::Span<const FlatTensor> tensors,
                                               const std::shared_ptr<const void>& owner);
// Errors: INVALID_ARGUMENT also for values that are neither tensors nor nothing.
absl::StatusOr<Tensors> DecodeTensorValues(const rpc::Payload& payload);

}  // namespace psd::rref
