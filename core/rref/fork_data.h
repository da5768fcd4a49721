#pragma once

#include <string>
#include <vector>

#include "core/base/ids.h"

namespace psd::rref {

// How an RRef travels: what a message says of one.
struct ForkData {
  std::string owner;
  Incarnation owner_incarnation = 0;
  GlobalId value;
  GlobalId fork;       // the receiver's
  std::string parent;  // who sent it; the owner itself: the fork is confirmed already
  std::string name;
};

// RRefs that follow each other in a message and have owner and parent in common.
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
