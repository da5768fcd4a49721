#pragma once

// What the reflection service says.

#include <string>
#include <vector>

#include "proto/grpc_reflection/reflection.pb.h"

namespace psd::server {

// Answers from the protos that are linked into this program; `services` are those to be listed.
// What is not known is a NOT_FOUND within the answer. Thread-safe.
grpc::reflection::v1alpha::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

}  // namespace psd::server
