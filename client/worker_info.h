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

// A member of the job. Two of them are equal if their names and incarnations are. ToValue makes a
// Value that can be passed to calls.
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
// the registrar is asked for its address. A rank is looked up at the registrar at every call.
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
