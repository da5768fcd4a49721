#pragma once

#include <string>
#include <vector>

#include "core/base/ids.h"

namespace psd::rref {

// The data of an RRef in a message.
struct ForkData {
  std::string owner;
  Incarnation owner_incarnation = 0;
  GlobalId value;
  GlobalId fork;       // the receiver's fork
  std::string parent;  // the sender; if this is the owner, the fork is confirmed already
  std::string name;
};

// Consecutive RRefs of a message that have the same owner and parent.
struct ForkRun {
  std::string owner;
  Incarnation owner_incarnation = 0;
  std::string parent;
  struct Fork {
    GlobalId value;
    GlobalId fork;
    std::string name;
  };
  std::vector<Fork> forks;

  ForkData DataOf(const Fork& one) const {
    return {owner, owner_incarnation, one.value, one.fork, parent, one.name};
  }
};

}  // namespace psd::rref
