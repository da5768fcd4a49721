#pragma once

// Splits a request about values of several workers into one part for each owner, asks all owners at
// the same time, and puts their answers back into the order of the request.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/collect.h"
#include "core/base/future.h"
#include "core/rref/rref.h"

namespace psd::rref {

// The part of a request that goes to one owner.
struct OwnerPart {
  std::string owner;
  std::vector<size_t> places;  // indices among all items of the request, ascending

  // Returns the items of this part.
  template <typename T>
  std::vector<T> Of(const std::vector<T>& items) const {
    std::vector<T> mine;
    mine.reserve(places.size());
    for (size_t place : places) mine.push_back(items[place]);
    return mine;
  }
};

// Groups `rrefs` by owner. Owners are ordered by their first RRef. Errors: INVALID_ARGUMENT for an
// RRef that refers to nothing.
absl::StatusOr<std::vector<OwnerPart>> PartsByOwner(const std::vector<RRef>& rrefs);

// Returns the answers of all parts in the order of the request.
// Requires: there is one answer for each part, with one element for each of its places.
template <typename T>
std::vector<T> InOrder(const std::vector<OwnerPart>& parts, std::vector<std::vector<T>> answers) {
  if (parts.size() == 1) return std::move(answers[0]);
  size_t count = 0;
  for (const OwnerPart& part : parts) count += part.places.size();
  std::vector<T> all(count);
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = 0; j < parts[i].places.size(); ++j)
      all[parts[i].places[j]] = std::move(answers[i][j]);
  }
  return all;
}

// Calls ask(part) for every part, which returns a Future<std::vector<T>> with one element for each
// place. Returns the answers in the order of the request, or the first error that arrives.
template <typename T, typename Ask>
Future<std::vector<T>> AskOwners(const std::vector<OwnerPart>& parts, Ask ask) {
  if (parts.size() == 1) return ask(parts[0]);
  std::vector<Future<std::vector<T>>> asked;
  asked.reserve(parts.size());
  for (const OwnerPart& part : parts) asked.push_back(ask(part));
  return CollectAll(asked).Then([parts](const absl::StatusOr<std::vector<std::vector<T>>>& answers)
                                    -> absl::StatusOr<std::vector<T>> {
    if (!answers.ok()) return answers.status();
    return InOrder(parts, *answers);
  });
}

}  // namespace psd::rref
