#pragma once

// Names the workers of a job and the worker that a call goes to. Included by client/psd.h.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/store/value.h"

namespace psd {

// A member of the job. Two are equal if name and incarnation are. Can be passed to calls as a Value
// (ToValue).
struct WorkerInfo {
  std::string name;
  Incarnation incarnation = 0;
  int rank = 0;

  friend bool operator==(const WorkerInfo& a, const WorkerInfo& b) {
    return a.name == b.name && a.incarnation == b.incarnation;
  }
  friend bool operator!=(const WorkerInfo& a, const WorkerInfo& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const WorkerInfo& info) {
    return H::combine(std::move(h), info.name, info.incarnation);
  }

  store::Value ToValue() const;
  // Errors: INVALID_ARGUMENT if `value` was not made by ToValue.
  static absl::StatusOr<WorkerInfo> FromValue(const store::Value& value);
};

// The worker that a call goes to, given by name, WorkerInfo or rank. If it is not connected yet,
// its address is asked from the registrar. For a rank the registrar is asked at every call.
class Callee {
 public:
  Callee(std::string name) : who_(std::move(name)) {}    // NOLINT: a name is a callee
  Callee(const char* name) : who_(std::string(name)) {}  // NOLINT
  Callee(const WorkerInfo& info) : who_(info) {}         // NOLINT
  Callee(int rank) : who_(rank) {}                       // NOLINT

  const std::variant<std::string, WorkerInfo, int>& who() const { return who_; }

 private:
  std::variant<std::string, WorkerInfo, int> who_;
};

}  // namespace psd
