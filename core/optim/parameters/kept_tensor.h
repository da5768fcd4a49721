#pragma once

#include <utility>

#include "core/tensor/tensor.h"

namespace psd::optim {

// A tensor of its own, or one that somebody else keeps for at least as long: thousands of those
// are passed on without counting who holds them.
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
  const Tensor* kept_ = nullptr;  // null: own_
  Tensor own_;
};

}  // namespace psd::optim
