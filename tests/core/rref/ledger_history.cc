#include "tests/core/rref/ledger_history.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"

namespace psd::rref::sim {

History RandomHistory(uint64_t seed, size_t steps) {
  std::mt19937_64 random(seed);
  const auto next = [&random] { return static_cast<uint32_t>(random()); };
  History history(steps);
  for (Step& step : history) step = {next(), next(), next(), next()};
  return history;
}

History Shrink(History history, absl::FunctionRef<bool(const History&)> broken) {
  for (size_t size = std::max<size_t>(1, history.size() / 2); size > 0;) {
    bool shorter = false;
    for (size_t first = 0; first < history.size();) {
      History rest(history.begin(), history.begin() + static_cast<ptrdiff_t>(first));
      const size_t last = std::min(first + size, history.size());
      rest.insert(rest.end(), history.begin() + static_cast<ptrdiff_t>(last), history.end());
      if (broken(rest)) {
        history = std::move(rest);
        shorter = true;
      } else {
        first = last;
      }
    }
    // A step that could not be left out before may be left out now, so size 1 is repeated.
    if (!shorter || size > 1) size /= 2;
  }
  return history;
}

std::string ToString(const History& history) {
  std::string text;
  for (const Step& step : history) {
    absl::StrAppend(&text, text.empty() ? "{" : ", {", step.action, ", ", step.a, ", ", step.b,
                    ", ", step.c, "}");
  }
  return text;
}

}  // namespace psd::rref::sim
