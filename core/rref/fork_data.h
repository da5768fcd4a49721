#pragma once

#include <string>

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

}  // namespace psd::rref
