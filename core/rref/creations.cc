#include "core/rref/creations.h"

#include <algorithm>
#include <utility>

namespace psd::rref {

Creations::Calls Creations::Begin(GlobalId value) {
  under_way_.try_emplace(value);
  return Take(expected_, value);
}

Creations::Calls Creations::End(GlobalId value) {
  return Take(under_way_, value);
}

bool Creations::AwaitBegin(GlobalId value, const Call& call) {
  if (UnderWay(value)) return false;
  expected_[value].push_back(call);
  return true;
}

bool Creations::AwaitEnd(GlobalId value, const Call& call) {
  auto found = under_way_.find(value);
  if (found == under_way_.end()) return false;
  found->second.push_back(call);
  return true;
}

bool Creations::Forget(GlobalId value, const Call& call) {
  auto found = expected_.find(value);
  if (found == expected_.end() || !Remove(found->second, call)) {
    found = under_way_.find(value);
    return found != under_way_.end() && Remove(found->second, call);
  }
  if (found->second.empty()) expected_.erase(found);
  return true;
}

Creations::Calls Creations::TakeAll() {
  Calls all;
  for (Waiting* waiting : {&expected_, &under_way_}) {
    for (auto& [value, calls] : *waiting) {
      for (Call& call : calls) all.push_back(std::move(call));
      calls.clear();
    }
  }
  expected_.clear();
  return all;
}

Creations::Calls Creations::Take(Waiting& from, GlobalId value) {
  auto found = from.find(value);
  if (found == from.end()) return {};
  Calls calls = std::move(found->second);
  from.erase(found);
  return calls;
}

bool Creations::Remove(Calls& calls, const Call& call) {
  auto found = std::find(calls.begin(), calls.end(), call);
  if (found == calls.end()) return false;
  calls.erase(found);
  return true;
}

}  // namespace psd::rref
