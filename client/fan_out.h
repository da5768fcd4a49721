#pragma once

// Asks the owners of an optimizer's parts at the same time, and joins their errors. Internal to
// client/.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/optimizer_state.h"
#include "core/base/future.h"

namespace psd {

// Calls start(i) for every part, which returns a Future<T>, and then waits for all answers, errors
// included. Returns them in the order of the parts.
template <typename T, typename Start>
std::vector<absl::StatusOr<T>> AskParts(const std::vector<OptimizerPart>& parts, Start start) {
  std::vector<Future<T>> asked;
  asked.reserve(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) asked.push_back(start(i));
  std::vector<absl::StatusOr<T>> answers;
  answers.reserve(parts.size());
  for (const Future<T>& each : asked) answers.push_back(each.Wait());
  return answers;
}

// Joins the errors of several owners into one. `what` names the operation in its text. The code and
// the details are those of the first error. OK if there are none.
absl::Status CombineFailures(
    const std::string& what,
    const std::vector<std::pair<std::string, absl::Status>>& failures_by_owner);

// Joins the errors among the answers of all parts in the same way.
template <typename T>
absl::Status CombineFailures(const std::string& what, const std::vector<OptimizerPart>& parts,
                             const std::vector<absl::StatusOr<T>>& answers) {
  std::vector<std::pair<std::string, absl::Status>> failures;
  for (size_t i = 0; i < parts.size(); ++i)
    if (!answers[i].ok()) failures.emplace_back(parts[i].owner, answers[i].status());
  return CombineFailures(what, failures);
}

}  // namespace psd
