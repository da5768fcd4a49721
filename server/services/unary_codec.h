#pragma once

// Converts tensors, data types and errors to the messages of the unary service and back.

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

// Returns a tensor with memory of its own. Errors: INVALID_ARGUMENT if dtype, shape and bytes do
// not match.
absl::StatusOr<Tensor> DecodeTensor(const v1::TensorData& data);
// Copies the tensor into `data`. Errors: RESOURCE_EXHAUSTED (a strided tensor needs memory to be
// made contiguous).
absl::Status EncodeTensor(const Tensor& tensor, v1::TensorData& data);

// Returns the error with its texts cut to the lengths that ToGrpcStatus sends.
absl::Status ClipError(const absl::Status& status);

// Returns a status with the same code and text. Details of the error go into the trailing metadata
// psd-worker, psd-object and psd-remedy.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase& context);

}  // namespace psd::server
