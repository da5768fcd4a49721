#pragma once

// Tensors, data types and errors of the unary service, to and from its messages.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/service.pb.h"

namespace psd::server {

// Errors: INVALID_ARGUMENT for a number that is no dtype.
absl::StatusOr<DType> DecodeDataType(v1::DataType type);
v1::DataType EncodeDataType(DType dtype);

// A tensor of its own memory. Errors: INVALID_ARGUMENT when dtype, shape and bytes disagree.
absl::StatusOr<Tensor> DecodeTensor(const v1::TensorData& data);
// Copies. Errors: RESOURCE_EXHAUSTED (a strided tensor needs memory to be made contiguous).
absl::Status EncodeTensor(const Tensor& tensor, v1::TensorData& data);

// The same code and text; what is known beyond them goes into the trailing metadata psd-worker,
// psd-object and psd-remedy.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase& context);

}  // namespace psd::server
