#pragma once

// The type and options of an optimizer, as data.

#include <map>
#include <string>

namespace psd::optim {

// Returns the shortest text that reads back as the same number.
std::string ShortestText(double value);

// An optimizer as data, which can be sent, and on which all creators of one named optimizer must
// agree.
struct OptimizerSpec {
  std::string type;  // "sgd", "adam", … (core/optim/options/optimizer_registry.h)
  // By PyTorch's names, except that betas are "beta1" and "beta2". True and false are 1 and 0.
  std::map<std::string, double> options;

  friend bool operator==(const OptimizerSpec& a, const OptimizerSpec& b) {
    return a.type == b.type && a.options == b.options;
  }
  // Returns, for example, "adam(beta1=0.9, beta2=0.999, lr=0.001)", sorted. Two specs give the same
  // text if and only if they are equal.
  std::string ToString() const;
};

}  // namespace psd::optim
