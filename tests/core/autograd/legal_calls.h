#pragma once

// One or more legal calls of every operator that programs know.

#include <string>
#include <vector>

#include "core/autograd/attributes.h"
#include "core/autograd/variable.h"

namespace psd::testing {

struct LegalCall {
  std::string op;
  std::vector<Variable> inputs;  // constants on the host
  Attributes attributes;
};

std::vector<LegalCall> LegalCalls();

}  // namespace psd::testing
