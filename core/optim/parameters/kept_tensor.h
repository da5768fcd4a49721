#pragma once

#include <utility>

#include "core/tensor/tensor.h"

namespace psd::optim {

// Refers to a tensor that it owns, or that it borrows from code which keeps it alive for at least
// as long. Borrowing saves the reference counts of the thousands of gradients of a step.
class KeptTensor {
 public:
  KeptTensor() = default;
  KeptTensor(Tensor own) : own_(std::move(own)) {}  // NOLINT: tensors convert
  static KeptTensor Borrow(const Tensor& kept) {
    KeptTensor borrowed;
    borrowed.kept_ = &kept;
    return borrowed;
  }

  const Tensor& operator*() const { return kept_ != nullptr ? *kept_ : own_; }
  const Tensor* operator->() const { return &**this; }

 private:
  const Tensor* kept_ = nullptr;  // if null, own_ is used
  Tensor own_;
};

}  // namespace psd::optim
