#pragma once

// The answers of the reflection service.

#include <string>
#include <vector>

#include "proto/grpc_reflection/reflection.pb.h"

namespace psd::server {

// Answers a request from the protos that are linked into this program. `services` are the names to
// list. An unknown name gives NOT_FOUND inside the answer. Thread-safe.
grpc::reflection::v1alpha::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

}  // namespace psd::server
