#pragma once

// Graphs of single f64 numbers, whose gradients are easy to compute by hand.

#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd::testing {

inline Variable Leaf(double value) {
  return Variable(Tensor::Scalar(value), /*requires_grad=*/true);
}

inline double Value(const Tensor& tensor) {
  EXPECT_TRUE(tensor.defined());
  return tensor.defined() ? *tensor.data<double>() : 0;
}

}  // namespace psd::testing
