#include "core/rpc/nearest_name.h"

#include <algorithm>
#include <limits>

namespace psd::rpc {
namespace {

constexpr size_t kMaxCompared = 1024;
constexpr size_t kMaxLength = 128;

size_t EditDistance(absl::string_view a, absl::string_view b) {
  a = a.substr(0, kMaxLength);
  b = b.substr(0, kMaxLength);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view name, const std::vector<std::string>& known) {
  std::string nearest;
  size_t least = std::numeric_limits<size_t>::max();
  for (size_t i = 0; i < known.size() && i < kMaxCompared; ++i) {
    size_t distance = EditDistance(name, known[i]);
    if (distance < least || (distance == least && known[i] < nearest)) {
      least = distance;
      nearest = known[i];
    }
  }
  return nearest;
}

}  // namespace psd::rpc
