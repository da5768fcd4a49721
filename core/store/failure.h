#pragma once

// The value that is hosted if the function that was to create a value failed. Reading it gives the
// error. References to it are counted like those to any value.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/store/value.h"

namespace psd::store {

// Immutable.
class Failure : public Object {
 public:
  explicit Failure(absl::Status status) : status_(std::move(status)) {}
  std::string TypeName() const override { return "failed creation"; }
  const absl::Status& status() const { return status_; }

 private:
  const absl::Status status_;
};

// Returns the error if `value` is a Failure, otherwise OK.
inline absl::Status FailureOf(const Value& value) {
  const auto* object = value.As<std::shared_ptr<Object>>();
  const auto* failure = object == nullptr ? nullptr : dynamic_cast<const Failure*>(object->get());
  return failure == nullptr ? absl::OkStatus() : failure->status();
}

}  // namespace psd::store
